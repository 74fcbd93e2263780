"""8-bit weights and activations as TensorRT reads them: explicit, symmetric Q/DQ pairs.

Only the inputs of convolutions and matrix products with weights are quantized; their
outputs and biases stay in float, so that TensorRT can fuse what follows. Layers that cost
more than the goals allow stay in float.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimize.recipes.base import Details, Precision, Target, Workbench
from optimize.recipes.quantize.build import build
from optimize.recipes.quantize.form import QuantForm
from optimize.recipes.quantize.layers import WEIGHTED
from optimize.recipes.quantize.static import static_method

FORM = QuantForm("s8", WEIGHTED)


@dataclass(frozen=True, slots=True)
class Int8Trt:
    """Static quantization with zero points at 0; ONNX Runtime runs the same graph."""

    name: str = "int8-trt"
    precision: Precision = "int8"
    targets: frozenset[Target] = frozenset({Target.TENSORRT, Target.CUDA})
    version: int = 3
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        return build(static_method(source, directory, FORM, bench), directory, bench)
