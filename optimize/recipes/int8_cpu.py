"""8-bit weights and activations in the forms that onnxruntime's CPU kernels are fast with.

Networks of convolutions, or of plain fully connected layers, get static quantization:
unsigned activations calibrated on rows of the data, signed weights per channel.
Networks of other matrix products (transformers) get dynamic quantization with signed
weights per channel, because activations with outliers ruin a static scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bundle.manifest import MODEL_NAME
from optimize.data import Rows
from optimize.recipes.base import Precision
from registry.quiet import quiet

_CALIBRATION_BATCH = 8
_STATIC = frozenset({"Conv", "Gemm"})


@dataclass(frozen=True, slots=True)
class Int8Cpu:
    """Chooses the form of quantization by the layers that the graph has."""

    name: str = "int8-cpu"
    precision: Precision = "int8"
    version: int = 1

    def build(self, source: Path, directory: Path, calibration: Rows) -> None:
        layers = weighted_layers(source)
        target = directory / MODEL_NAME
        with quiet():
            if "Conv" in layers or layers == {"Gemm"}:
                _quantize_static(source, target, calibration)
            elif "MatMul" in layers:
                _quantize_dynamic(source, target)
            else:
                raise ValueError("the model has no convolution or matrix product with weights")


def weighted_layers(path: Path) -> set[str]:
    """Which of Conv, Gemm and MatMul occur in the graph with a constant weight."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return {
        node.op_type
        for node in graph.node
        if node.op_type in (*_STATIC, "MatMul") and constants.intersection(node.input[1:2])
    }


def _quantize_static(source: Path, target: Path, calibration: Rows) -> None:
    from onnxruntime.quantization.quant_utils import QuantFormat, QuantType
    from onnxruntime.quantization.quantize import quantize_static

    quantize_static(
        str(source),
        str(target),
        _reader(calibration),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _quantize_dynamic(source: Path, target: Path) -> None:
    from onnxruntime.quantization.quant_utils import QuantType
    from onnxruntime.quantization.quantize import quantize_dynamic

    quantize_dynamic(
        str(source),
        str(target),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=QuantType.QInt8,
    )


def _reader(rows: Rows) -> Any:
    """The rows as onnxruntime's calibration reader: one feed at a time, then None."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = _feeds(rows)

        def get_next(self) -> Any:
            return next(self._feeds, None)

    return Reader()


def _feeds(rows: Rows) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, rows.count, _CALIBRATION_BATCH):
        index = np.arange(start, min(start + _CALIBRATION_BATCH, rows.count))
        yield dict(rows.take(index).inputs)
