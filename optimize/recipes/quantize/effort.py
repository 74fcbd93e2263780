"""How much arithmetic a graph needs, counted, and what follows for a search.

A count and not a clock decides how many rows a search looks at, so that the same graph
always gets the same answer, whatever else the machine was doing.
"""

from __future__ import annotations

import math
from pathlib import Path

from optimize.data import Rows
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.layers import WEIGHTED, find_layers, float_weights
from optimize.recipes.quantize.observe import observer

# Enough to rank layers; a whole graph is judged on all calibration rows.
MAX_ROWS = 16
MIN_ROWS = 2

# Of the order of a minute on one core, at some 3e10 multiplications and additions a second.
_BUDGET = 1.2e12


def trial_rows(per_row: float, trials: int) -> int:
    """How many rows `trials` runs of a graph can afford; `per_row` counts multiply-accumulates."""
    affordable = _BUDGET / max(per_row * trials, 1.0)
    return int(min(max(affordable, MIN_ROWS), MAX_ROWS))


def multiply_accumulates(source: Path, rows: Rows, scratch: Path) -> int:
    """Those of the convolutions and matrix products with weights of `source`, for one row.

    Every output value of such a layer takes as many as a channel of its weight has
    values. Runs the graph on the first of `rows`, because sizes may be dynamic; it lies
    in `scratch` meanwhile.
    """
    graph = read_graph(source, data=False).graph
    weights = float_weights(graph)
    made = {node.name: node.output[0] for node in graph.node}
    layers = find_layers(graph, WEIGHTED)
    names = [made[layer.name] for layer in layers]
    values = observer(source, names, scratch)(rows.head(1).inputs)
    total = 0
    for layer, name in zip(layers, names, strict=True):
        assert layer.weight is not None
        shape = weights[layer.weight].dims
        total += values[name].size * (math.prod(shape) // shape[layer.axis])
    return total
