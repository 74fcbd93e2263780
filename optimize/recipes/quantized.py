"""The INT8 and INT4 recipes: quantized graphs of ONNX Runtime's library, and a search on top.

Layers that cost more than the goals allow stay in float. The two forms for the CPU are separate
variants, because which of them is faster depends on the model and on the processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlctl.optimize.recipes.base import Details, Precision, Target, Workbench
from mlctl.optimize.recipes.quantize.methods import dynamic_methods, static_methods, weights_method
from mlctl.optimize.recipes.quantize.search import build


@dataclass(frozen=True, slots=True)
class Int8Static:
    """Scales from calibration, for convolutions, products and what is between them."""

    name: str = "int8-static"
    precision: Precision = "int8"
    targets: frozenset[Target] = frozenset({Target.CPU})
    version: int = 7
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        methods = static_methods(source, bench.calibration, directory, tensorrt=False)
        return build(methods, source, directory, bench)


@dataclass(frozen=True, slots=True)
class Int8Dynamic:
    """Scales from each batch, for matrix products; outliers in activations do little harm."""

    name: str = "int8-dynamic"
    precision: Precision = "int8"
    targets: frozenset[Target] = frozenset({Target.CPU})
    version: int = 4
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        return build(dynamic_methods(source), source, directory, bench)


@dataclass(frozen=True, slots=True)
class Int8Trt:
    """Explicit, symmetric Q/DQ pairs as TensorRT reads them; ONNX Runtime runs the same graph."""

    name: str = "int8-trt"
    precision: Precision = "int8"
    targets: frozenset[Target] = frozenset({Target.TENSORRT, Target.CUDA})
    version: int = 7
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        methods = static_methods(source, bench.calibration, directory, tensorrt=True)
        return build(methods, source, directory, bench)


@dataclass(frozen=True, slots=True)
class Int4:
    """4-bit weights of products and embeddings for ONNX Runtime on the CPU."""

    name: str = "int4"
    precision: Precision = "int4"
    targets: frozenset[Target] = frozenset({Target.CPU})
    version: int = 7
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        return build([weights_method(source, tensorrt=False)], source, directory, bench)


@dataclass(frozen=True, slots=True)
class Int4Trt:
    """4-bit weights of products in the form that TensorRT reads."""

    name: str = "int4-trt"
    precision: Precision = "int4"
    targets: frozenset[Target] = frozenset({Target.TENSORRT})
    version: int = 3
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        return build([weights_method(source, tensorrt=True)], source, directory, bench)
