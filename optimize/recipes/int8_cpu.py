"""8-bit weights and activations in the forms that ONNX Runtime's CPU kernels run fast.

Networks of convolutions or plain fully connected layers get static quantization with
unsigned activations. If most layers are other matrix products (transformers), these get
dynamic quantization, because outliers in activations ruin a static scale. Layers that
cost more than the goals allow stay in float.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from optimize.recipes.base import Details, Precision, Target, Workbench
from optimize.recipes.quantize.build import QuantizeMethod, build
from optimize.recipes.quantize.dynamic import OPERATORS, Dynamic
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.form import QuantForm
from optimize.recipes.quantize.layers import WEIGHTED, find_layers
from optimize.recipes.quantize.static import static_method

# A convolution whose output one of these reads in float would itself run in float.
_COMBINING = ("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid")

FORM = QuantForm("u8", (*WEIGHTED, *_COMBINING))


@dataclass(frozen=True, slots=True)
class Int8Cpu:
    """Chooses static or dynamic quantization by the layers that the graph has."""

    name: str = "int8-cpu"
    precision: Precision = "int8"
    targets: frozenset[Target] = frozenset({Target.CPU})
    version: int = 4
    tuned: bool = True

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        return build(_method(source, directory, bench), directory, bench)


def _method(source: Path, directory: Path, bench: Workbench) -> QuantizeMethod:
    graph = read_graph(source, data=False).graph
    products = find_layers(graph, OPERATORS)
    kinds = Counter(layer.operator for layer in find_layers(graph, WEIGHTED))
    if kinds["MatMul"] > kinds.total() / 2:
        return Dynamic(source, products)
    return static_method(source, directory, FORM, bench)
