"""Half precision weights and arithmetic, with the inputs and outputs left in fp32.

Halves the file. On CPUs ONNX Runtime computes most of it in fp32, so it is not faster there.
fp16 ends at 65504: operators that read or write a value near that on the data, or a weight
beyond it, are left in fp32.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.base import Details, Precision, Target, Workbench, save_graph
from mlctl.optimize.recipes.graphs import load_typed, write_beside
from mlctl.optimize.recipes.half import FP16_MAX, is_beyond
from mlctl.optimize.recipes.narrow import narrow
from mlctl.optimize.recipes.observe import observe, show_values

# Rows that were not observed may have values twice as large.
_HEADROOM = 2.0

_ROWS = 32


@dataclass(frozen=True, slots=True)
class Fp16:
    """Rewrites every operator that exists in fp16; NotApplicableError if there is none."""

    name: str = "fp16"
    precision: Precision = "fp16"
    targets: frozenset[Target] = frozenset(Target)
    version: int = 3
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        limit = FP16_MAX / _HEADROOM
        beyond = values_beyond(source, bench.calibration, limit, directory)
        narrowed = narrow(source, beyond)
        save_graph(narrowed.model, directory)
        return Details({"arithmetic": "fp16, inputs and outputs fp32", **narrowed.settings})


def values_beyond(source: Path, rows: Rows, limit: float, scratch: Path) -> frozenset[str]:
    """Return the fp32 inputs and node outputs that exceed `limit` on the first rows.

    Runs the graph, in a folder of `scratch`, with every such value as an output; values inside
    branches and loop bodies are not observed.
    """
    model = load_typed(source, data=False)
    show_values(model)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = write_beside(model, source, Path(folder), "observed.onnx")
        return frozenset(
            name
            for values in observe(path, rows.head(_ROWS))
            for name, array in values.items()
            if _exceeds(array, limit)
        )


def _exceeds(array: np.ndarray, limit: float) -> bool:
    return array.dtype == np.float32 and is_beyond(array, limit)
