"""Half precision weights and arithmetic, with the inputs and outputs left in fp32.

Halves the file. On CPUs onnxruntime computes most of it in fp32 all the same, so
do not expect speed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimize.data import Rows
from optimize.recipes.base import Precision, save_graph
from registry.quiet import quiet


@dataclass(frozen=True, slots=True)
class Fp16:
    """Converts every fp32 tensor of the graph; ValueError if there is none."""

    name: str = "fp16"
    precision: Precision = "fp16"
    version: int = 1

    def build(self, source: Path, directory: Path, calibration: Rows) -> None:  # noqa: ARG002
        import onnx
        from onnxruntime.transformers import float16, onnx_model

        model = onnx.load(str(source))
        if all(tensor.data_type != onnx.TensorProto.FLOAT for tensor in model.graph.initializer):
            raise ValueError("the model has no fp32 weights")
        with quiet():
            convert: Any = float16.convert_float_to_float16
            editor: Any = onnx_model.OnnxModel
            half = editor(convert(model, keep_io_types=True))
            # The converter appends the casts of the inputs after the nodes that read them.
            half.topological_sort(is_deterministic=True)
            save_graph(half.model, directory)
