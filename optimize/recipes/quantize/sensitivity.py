"""Search: what each layer costs when quantized, and how few must stay in float.

Every layer is tried alone on a few rows; then the costliest are left in float, more and
more of them, until the whole graph is good. Costs are cached one by one, so a killed search
resumes. A count of multiplications and not a clock decides how many rows are tried, so the same
graph always gives the same result.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from bundle.entries import Key
from bundle.files import write_atomic
from bundle.manifest import canonical_json
from optimize.data import Rows
from optimize.recipes.base import Workbench
from optimize.recipes.quantize.calibrate import observer
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.layers import WEIGHTED, find_layers, float_weights

# Enough to rank layers; a whole graph is judged on all calibration rows.
MAX_ROWS = 16
MIN_ROWS = 2

# About a minute on one core, at some 3e10 multiply-accumulates a second.
_BUDGET = 1.2e12

_FILE = "cost.json"

WriteGraph = Callable[[Collection[str], Path], None]


def trial_rows(per_row: float, trials: int) -> int:
    """Return how many rows `trials` runs can afford; `per_row` counts multiply-accumulates."""
    affordable = _BUDGET / max(per_row * trials, 1.0)
    return int(min(max(affordable, MIN_ROWS), MAX_ROWS))


def multiply_accumulates(source: Path, rows: Rows, scratch: Path) -> int:
    """Count those of the convolutions and matrix products with weights of `source`, per row.

    Every output value of such a layer takes as many as a channel of its weight has
    values. Runs the graph on the first of `rows`, because sizes may be dynamic; its copy in
    `scratch` must stay until this returns.
    """
    graph = read_graph(source, data=False).graph
    weights = float_weights(graph)
    outputs = {node.name: node.output[0] for node in graph.node}
    layers = find_layers(graph, WEIGHTED)
    names = [outputs[layer.name] for layer in layers]
    values = observer(source, names, scratch)(rows.head(1).inputs)
    total = 0
    for layer, name in zip(layers, names, strict=True):
        assert layer.weight is not None
        shape = weights[layer.weight].dims
        total += values[name].size * (math.prod(shape) // shape[layer.axis])
    return total


def smallest_good(count: int, good: Callable[[int], bool]) -> int | None:
    """Return the smallest k from 1 to `count` - 1 that was found good; None if none was.

    k grows by about half until it is good, then the last gap is bisected. The order need not be
    monotonic: the result itself was tried.
    """
    low, high = 0, 1
    while high < count and not good(high):
        low, high = high, max(high + 1, min(high * 3 // 2, count - 1))
    if high >= count:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def layer_costs(
    names: Sequence[str], cost: Callable[[str], float], key: Key, bench: Workbench
) -> dict[str, float]:
    """Return the cost of quantizing each layer alone, the costliest first.

    `cost` runs only for layers that are not in the store; `key` says what it depends on.
    """
    found = {}
    for done, name in enumerate(names, 1):

        def fill(directory: Path, name: str = name) -> None:
            write_atomic(directory / _FILE, canonical_json(cost(name)))

        stored = bench.store({**key, "kind": "layer cost", "layer": name}, fill)
        found[name] = TypeAdapter(float).validate_json((stored / _FILE).read_bytes())
        bench.step("sensitivity", done, len(names))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def keep_worst(
    costs: Mapping[str, float], write: WriteGraph, directory: Path, bench: Workbench
) -> tuple[tuple[str, ...], str]:
    """Return the costliest layers that must stay in float for a good graph, and an empty text.

    `costs` has the costliest first; `write` writes the graph with the named layers in float
    into a folder inside `directory` that is then removed. If even a single quantized layer
    is too much, no layer is returned, and the text says what the last try missed: the gates
    then show what quantizing all of them costs.
    """
    ranked = list(costs)
    missed = ""

    def good(kept: int) -> bool:
        nonlocal missed
        bench.step("layers left in float", kept, len(ranked))
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            write(ranked[:kept], Path(scratch))
            quality = bench.quality(Path(scratch))
        missed = f": {quality.words}"
        return quality.good

    kept = smallest_good(len(ranked), good)
    if kept is None:
        return (), f"no layer can be quantized within the goals{missed}"
    return tuple(ranked[:kept]), ""
