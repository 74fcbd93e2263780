"""A graph whose matrix products quantize their activations as they come.

The scale of an activation is that of the batch it comes in. Weights are stored as int8 per
output channel. ONNX Runtime fuses the nodes into one while it loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from optimize.recipes.graphs import drop_unused_weights
from optimize.recipes.quantize.edit import FreshNames, add_tensor, insert
from optimize.recipes.quantize.form import quantize_weight
from optimize.recipes.quantize.layers import Layer

OPERATORS = ("MatMul",)


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
            added[activation] = [quantizer(names, activation)]
        if weight not in stored:
            stored[weight] = _store_weight(graph, names, weights[weight])
        node = nodes[layer.name]
        instead[node.name] = _product(names, node, added[activation][0].output, stored[weight])
    insert(graph, added, instead)
    drop_unused_weights(graph)


def quantizer(names: FreshNames, activation: str) -> Any:
    """The node that makes of `activation` integers, their scale and their zero point."""
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
    """real = integer product * (scale of the activation * scales of the weight)."""
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
