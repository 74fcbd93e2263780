"""Dynamic quantization: matrix products quantize their activations at run time.

The scale of an activation is that of the batch it is in. Weights are stored as int8 per
output channel. ONNX Runtime fuses the nodes into one while it loads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimize.recipes.base import save_graph
from optimize.recipes.graphs import drop_unused_weights
from optimize.recipes.quantize.edit import FreshNames, add_tensor, insert, read_graph
from optimize.recipes.quantize.form import quantize_weight, restored_weight
from optimize.recipes.quantize.layers import Layer
from optimize.recipes.quantize.trial import SwitchableGraph

OPERATORS = ("MatMul",)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A `QuantizeMethod` with the activations' ranges taken from each batch."""

    source: Path
    layers: tuple[Layer, ...]

    @property
    def identity(self) -> str:
        return "dynamic"

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "form": "dynamic U8S8 per channel",
            "activation scale": "one for a whole batch, so neighbours move an answer a little",
        }

    def write(self, kept: Collection[str], directory: Path) -> None:
        model = read_graph(self.source, data=True)
        make_dynamic(model, [layer for layer in self.layers if layer.name not in kept])
        save_graph(model, directory)

    def trial(self, scratch: Path) -> SwitchableGraph:
        return SwitchableGraph(self.source, self.layers, restored_weight, _round_trip, scratch)


def make_dynamic(model: Any, layers: Iterable[Layer]) -> None:
    """Quantize `layers`, each a MatMul with a weight, of the ONNX model in place."""
    graph = model.graph
    names = FreshNames(graph)
    nodes = {node.name: node for node in graph.node}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    added: dict[str, list[Any]] = {}
    instead: dict[str, list[Any]] = {}
    stored: dict[str, tuple[str, str]] = {}
    for layer in layers:
        (activation,), weight = layer.activations, layer.weight
        assert weight is not None
        if activation not in added:
            added[activation] = [_quantizer(names, activation)]
        if weight not in stored:
            stored[weight] = _store_weight(graph, names, weights[weight])
        node = nodes[layer.name]
        instead[node.name] = _product(names, node, added[activation][0].output, stored[weight])
    insert(graph, added, instead)
    drop_unused_weights(graph)


def _round_trip(graph: Any, names: FreshNames, activation: str) -> list[Any]:  # noqa: ARG001
    from onnx import helper

    first = _quantizer(names, activation)
    restored = names.new(f"{activation}_restored")
    return [first, helper.make_node("DequantizeLinear", first.output, [restored])]


def _quantizer(names: FreshNames, activation: str) -> Any:
    """Return the node that turns `activation` into integers, their scale and their zero point."""
    from onnx import helper

    outputs = [names.new(f"{activation}_{part}") for part in ("quantized", "scale", "zero_point")]
    name = names.new(f"{activation}_quantizer")
    return helper.make_node("DynamicQuantizeLinear", [activation], outputs, name=name)


def _store_weight(graph: Any, names: FreshNames, tensor: Any) -> tuple[str, str]:
    from onnx import numpy_helper

    integers, scales = quantize_weight(numpy_helper.to_array(tensor), axis=1)
    return (
        add_tensor(graph, names.new(f"{tensor.name}_quantized"), integers),
        add_tensor(graph, names.new(f"{tensor.name}_scale"), scales),
    )


def _product(
    names: FreshNames, node: Any, activation: Sequence[str], weight: tuple[str, str]
) -> list[Any]:
    """Return real = integer product * (scale of the activation * scales of the weight)."""
    from onnx import TensorProto, helper

    integers, scale, zero = activation
    total, real, factor = (
        names.new(f"{node.name}_{part}") for part in ("integer", "real", "scale")
    )
    named = [names.new(f"{node.name}_{part}") for part in ("product", "cast", "scales", "scaled")]
    return [
        helper.make_node("MatMulInteger", [integers, weight[0], zero], [total], name=named[0]),
        helper.make_node("Cast", [total], [real], name=named[1], to=TensorProto.FLOAT),
        helper.make_node("Mul", [scale, weight[1]], [factor], name=named[2]),
        helper.make_node("Mul", [real, factor], [node.output[0]], name=named[3]),
    ]
