"""4-bit weights of matrix products, in the form that ONNX Runtime and TensorRT both read.

Embeddings and convolutions are unchanged. Layers that cost more than the goals allow stay in
float.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimize.recipes.base import Details, Precision, Target, Workbench
from optimize.recipes.quantize.blocks import OPERATORS, WeightOnly
from optimize.recipes.quantize.build import build
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.layers import find_layers


@dataclass(frozen=True, slots=True)
class Int4:
    """Quantizes weights only; ValueError if no matrix product has a constant weight."""

    name: str = "int4"
    precision: Precision = "int4"
    targets: frozenset[Target] = frozenset({Target.CPU, Target.TENSORRT})
    version: int = 2
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        layers = find_layers(read_graph(source, data=False).graph, OPERATORS)
        if not layers:
            raise ValueError("the model has no matrix product with weights")
        return build(WeightOnly(source, layers), directory, bench)
