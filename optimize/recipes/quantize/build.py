"""Build a quantized variant: all layers in 8 bits if that is good enough, else with a search.

The search leaves as few of the costliest layers as possible in float.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from bundle.entries import Key
from optimize.cache import versions
from optimize.data import Rows
from optimize.metrics.parity import compare, finite
from optimize.recipes.base import Details, LayerCost, Workbench
from optimize.recipes.quantize.calibrate import BATCH, graph_digest, rows_digest
from optimize.recipes.quantize.layers import Layer
from optimize.recipes.quantize.sensitivity import (
    keep_worst,
    layer_costs,
    multiply_accumulates,
    trial_rows,
)
from optimize.recipes.quantize.trial import SwitchableGraph
from services.runtime.scorer import join_rows, split_rows

VERSION = 1

# The cost of a layer that makes answers NaN or infinite: larger than any other.
BROKEN = 1e9


class QuantizeMethod(Protocol):
    """A way to quantize the layers of the graph `source`.

    `settings` describes it for a reader; `identity` differs for different arithmetic.
    """

    @property
    def source(self) -> Path: ...

    @property
    def identity(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    def write(self, kept: Collection[str], directory: Path) -> None:
        """Write the graph with all layers quantized but those named in `kept`."""
        ...

    def trial(self, scratch: Path) -> SwitchableGraph:
        """Return the same arithmetic, simulated; see `SwitchableGraph`."""
        ...


def build(method: QuantizeMethod, directory: Path, bench: Workbench) -> Details:
    """Write the graph into `directory`, with all layers quantized if no search can help."""
    method.write((), directory)
    costs: dict[str, float] = {}
    kept: tuple[str, ...] = ()
    missed = ""
    if not bench.quality(directory).good:
        costs = _costs(method, directory, bench)
        kept, missed = keep_worst(costs, method.write, directory, bench)
        method.write(kept, directory)
    operators = {layer.name: layer.operator for layer in method.layers}
    return Details(
        settings={
            **method.settings,
            "calibration rows": str(bench.calibration.count),
            "layers quantized": str(len(method.layers) - len(kept)),
            "layers left in float": str(len(kept)),
            **({"search": missed} if missed else {}),
        },
        layers=tuple(
            LayerCost(name, operators[name], cost, name in kept) for name, cost in costs.items()
        ),
    )


def _costs(method: QuantizeMethod, directory: Path, bench: Workbench) -> dict[str, float]:
    names = [layer.name for layer in method.layers]
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        per_row = multiply_accumulates(method.source, bench.calibration, Path(scratch))
    rows = bench.calibration.head(trial_rows(per_row, len(names)))
    key: Key = {
        "version": VERSION,
        "graph": graph_digest(method.source),
        "rows": rows_digest(rows),
        "method": hashlib.sha256(method.identity.encode()).hexdigest(),
        "libraries": versions("numpy", "onnxruntime", "onnxruntime-gpu"),
    }
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        judge = _LayerJudge(method, rows, Path(scratch))
        return layer_costs(names, judge.cost, key, bench)


class _LayerJudge:
    """Measures how far the answers move when one layer is quantized; opens its session lazily."""

    def __init__(self, method: QuantizeMethod, rows: Rows, scratch: Path) -> None:
        self._method = method
        self._rows = rows
        self._scratch = scratch

    def cost(self, name: str) -> float:
        found = self._answers([name])
        return compare(self._reference, found).relative_l2 if finite(found) else BROKEN

    @cached_property
    def _trial(self) -> SwitchableGraph:
        return self._method.trial(self._scratch)

    @cached_property
    def _reference(self) -> dict[str, np.ndarray]:
        return self._answers([])

    def _answers(self, quantized: list[str]) -> dict[str, np.ndarray]:
        parts = split_rows(self._rows.inputs, BATCH)
        return join_rows([self._trial.run(part, quantized) for part in parts])
