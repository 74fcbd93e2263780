"""Calibration: run the float graph on the calibration rows and find each activation's range.

Rows run 8 at a time and only minima, maxima and histograms are kept, so memory is bounded
by the activations of one batch. The bins of a histogram are fixed by the minima and maxima of a
first pass, so the result does not depend on how the rows are divided. A graph whose rows depend
on each other gets 8 at a time too; that is as valid an input as any.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.entries import Key
from bundle.files import sha256_file
from optimize.cache import versions
from optimize.data import Rows, Tensors
from optimize.recipes.base import DATA_NAME, Calibrator, Workbench
from optimize.recipes.quantize.edit import read_graph, write_beside
from optimize.recipes.quantize.thresholds import (
    ValueRange,
    count_bins,
    entropy_range,
    percentile_range,
)
from services.runtime.scorer import split_rows
from services.runtime.session import open_session

VERSION = 1
BATCH = 8

_FILE = "observed.npz"

Ranges = Mapping[str, ValueRange]
Observe = Callable[[Tensors], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of the activations `tensors` of the graph `source`, cached in the store.

    A first pass finds minima and maxima; only calibrators that need histograms cost a second
    pass.
    """

    source: Path
    tensors: tuple[str, ...]
    bench: Workbench

    def ranges(self, calibrator: Calibrator) -> Ranges:
        """Return every activation's range, without those that are not fp32 or not finite."""
        observed = self._observed()
        if calibrator is Calibrator.MINMAX:
            return observed
        counts = self._counts(observed)
        choose = entropy_range if calibrator is Calibrator.ENTROPY else percentile_range
        return {name: choose(bounds, counts[name]) for name, bounds in observed.items()}

    def _observed(self) -> dict[str, ValueRange]:
        def fill(directory: Path) -> None:
            found = observed_ranges(self._values("calibration ranges", directory))
            bounds = [[bounds.low, bounds.high] for bounds in found.values()]
            _save(directory, found, np.array(bounds, np.float64).reshape(-1, 2))

        stored = _load(self.bench.store(self._key("ranges"), fill))
        return {name: ValueRange(float(low), float(high)) for name, (low, high) in stored.items()}

    def _counts(self, observed: Ranges) -> dict[str, np.ndarray]:
        def fill(directory: Path) -> None:
            values = self._values("calibration histograms", directory)
            found = observed_counts(values, observed)
            _save(directory, found, np.array(list(found.values())))

        return _load(self.bench.store(self._key("histograms"), fill))

    def _values(self, phase: str, directory: Path) -> Iterator[dict[str, np.ndarray]]:
        rows = self.bench.calibration
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            observe = observer(self.source, self.tensors, Path(scratch))
            for number, batch in enumerate(split_rows(rows.inputs, BATCH), 1):
                yield observe(batch)
                self.bench.step(phase, min(number * BATCH, rows.count), rows.count)

    def _key(self, kind: str) -> Key:
        return {
            "kind": f"calibration {kind}",
            "version": VERSION,
            "graph": graph_digest(self.source),
            "rows": rows_digest(self.bench.calibration),
            "tensors": hashlib.sha256("\0".join(self.tensors).encode()).hexdigest(),
            "libraries": versions("numpy", "onnxruntime", "onnxruntime-gpu"),
        }


def observer(source: Path, tensors: Sequence[str], scratch: Path) -> Observe:
    """Return a function that gives the values of `tensors` for inputs of the graph `source`.

    The folder `scratch` must exist as long as the function is used.
    """
    import onnx

    model = read_graph(source, data=False)
    graph = model.graph
    present = {value.name for value in (*graph.input, *graph.output)}
    # The runtime infers the types.
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in present)
    session = open_session(write_beside(model, source, scratch, "observed.onnx"))

    def observe(inputs: Tensors) -> dict[str, np.ndarray]:
        values = {**session.run(inputs), **inputs}
        return {name: values[name] for name in tensors}

    return observe


def observed_ranges(batches: Iterable[Tensors]) -> dict[str, ValueRange]:
    """Return the minimum and maximum of every fp32 tensor that was finite throughout."""
    found: dict[str, ValueRange] = {}
    unfit: set[str] = set()
    for batch in batches:
        for name, array in batch.items():
            if array.size == 0:
                continue
            is_float = array.dtype == np.float32
            bounds = ValueRange(float(array.min()), float(array.max())) if is_float else None
            if bounds is None or not np.isfinite([bounds.low, bounds.high]).all():
                unfit.add(name)
            else:
                found[name] = bounds.union(found.get(name, bounds))
    return {name: bounds for name, bounds in found.items() if name not in unfit}


def observed_counts(batches: Iterable[Tensors], observed: Ranges) -> dict[str, np.ndarray]:
    """Return the histogram of every tensor in `observed`, with bins fixed by its range."""
    found: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, bounds in observed.items():
            counts = count_bins(batch[name], bounds.largest)
            found[name] = found[name] + counts if name in found else counts
    return found


def graph_digest(source: Path) -> str:
    """Return a digest of the graph and its weights, wherever they are stored."""
    paths = (source, source.parent / DATA_NAME)
    return " ".join(sha256_file(path) for path in paths if path.is_file())


def rows_digest(rows: Rows) -> str:
    """Return the hex sha256 of the inputs of `rows`."""
    digest = hashlib.sha256()
    for name, array in sorted(rows.inputs.items()):
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        digest.update(f"{name} {array.dtype} {array.shape} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _save(directory: Path, names: Mapping[str, object], values: np.ndarray) -> None:
    np.savez(directory / _FILE, names=np.array(list(names), dtype=np.str_), values=values)


def _load(directory: Path) -> dict[str, np.ndarray]:
    with np.load(directory / _FILE) as file:
        return dict(zip(file["names"].tolist(), file["values"], strict=True))
