"""What activations hold while the float graph runs: their values, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from optimize.data import Tensors
from optimize.recipes.quantize.edit import read_graph, write_beside
from optimize.recipes.quantize.thresholds import ValueRange, count_bins
from services.runtime.session import open_session

Ranges = Mapping[str, ValueRange]
Observe = Callable[[Tensors], dict[str, np.ndarray]]


def observer(source: Path, tensors: Sequence[str], scratch: Path) -> Observe:
    """A function that gives the values of `tensors` for rows of the inputs of `source`.

    `scratch` must stay until it has been called for the last time.
    """
    import onnx

    model = read_graph(source, data=False)
    graph = model.graph
    have = {value.name for value in (*graph.input, *graph.output)}
    # The runtime infers the types.
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in have)
    session = open_session(write_beside(model, source, scratch, "observed.onnx"))

    def observe(inputs: Tensors) -> dict[str, np.ndarray]:
        values = {**session.run(inputs), **inputs}
        return {name: values[name] for name in tensors}

    return observe


def seen_ranges(batches: Iterable[Tensors]) -> dict[str, ValueRange]:
    """The least and greatest value of every fp32 tensor that was finite throughout."""
    found: dict[str, ValueRange] = {}
    unfit: set[str] = set()
    for batch in batches:
        for name, array in batch.items():
            if array.size == 0:
                continue
            bounds = (
                ValueRange(float(array.min()), float(array.max())) if _is_float(array) else None
            )
            if bounds is None or not np.isfinite([bounds.low, bounds.high]).all():
                unfit.add(name)
            else:
                found[name] = bounds.joined(found.get(name, bounds))
    return {name: bounds for name, bounds in found.items() if name not in unfit}


def seen_counts(batches: Iterable[Tensors], seen: Ranges) -> dict[str, np.ndarray]:
    """The histogram of every tensor in `seen`, with bins fixed by its range."""
    found: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, bounds in seen.items():
            counts = count_bins(batch[name], bounds.largest)
            found[name] = found[name] + counts if name in found else counts
    return found


def _is_float(array: np.ndarray) -> bool:
    return array.dtype == np.float32
