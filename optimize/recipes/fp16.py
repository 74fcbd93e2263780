"""Half precision weights and arithmetic, with the inputs and outputs left in fp32.

Halves the file. On CPUs onnxruntime computes most of it in fp32 all the same, so
do not expect speed there. fp16 ends at 65504: operators that touch a value which
comes near that on the data, or a weight beyond it, are left in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimize.recipes.base import Details, Precision, Target, Workbench, save_graph
from optimize.recipes.half import FP16_MAX
from optimize.recipes.narrow import narrow
from optimize.recipes.ranges import values_beyond

# Other rows than those observed may double a value.
_HEADROOM = 2.0


@dataclass(frozen=True, slots=True)
class Fp16:
    """Rewrites every operator that exists in fp16; ValueError if there is none."""

    name: str = "fp16"
    precision: Precision = "fp16"
    targets: frozenset[Target] = frozenset(Target)
    version: int = 3
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        limit = FP16_MAX / _HEADROOM
        beyond = values_beyond(source, bench.calibration, limit, directory)
        narrowed = narrow(source, "fp16", beyond)
        save_graph(narrowed.model, directory)
        return Details({"arithmetic": "fp16, inputs and outputs fp32", **narrowed.settings})
