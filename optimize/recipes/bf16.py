"""bfloat16 weights and arithmetic, with the inputs and outputs left in fp32.

bfloat16 has the range of fp32, so nothing overflows, and 8 bits of precision. ONNX Runtime
has no bfloat16 kernels for the CPU; there a twin graph stands for the accuracy. It has the
same weights and rounds to bfloat16 every value that the graph has in bfloat16. Inside an operator
it computes in fp32, as the accumulators of GPUs do. Kernels that fuse operators round less often
or add in another order; the twin does not model that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimize.recipes.base import (
    TWIN_NAME,
    Details,
    Precision,
    Target,
    Workbench,
    save_graph,
)
from optimize.recipes.narrow import narrow

# The first opset in which convolution and pooling take bfloat16.
_OPSET = 22


@dataclass(frozen=True, slots=True)
class Bf16:
    """Rewrites every operator that exists in bfloat16; ValueError if there is none."""

    name: str = "bf16"
    precision: Precision = "bf16"
    targets: frozenset[Target] = frozenset({Target.TENSORRT})
    version: int = 2
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:  # noqa: ARG002
        narrowed = narrow(source, "bf16", opset=_OPSET)
        save_graph(narrowed.model, directory)
        twin = narrow(source, "bf16", opset=_OPSET, emulate=True)
        save_graph(twin.model, directory, TWIN_NAME)
        return Details({"arithmetic": "bf16, inputs and outputs fp32", **narrowed.settings})
