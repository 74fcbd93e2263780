"""A graph with static Q/DQ pairs: QuantizeLinear and DequantizeLinear before every layer.

An activation gets one pair, shared by all quantized layers that read it; layers left in
float read the original. Weights are stored as int8 behind a DequantizeLinear. Outputs and
biases are left alone: ONNX Runtime moves the pairs and quantizes biases itself while it
loads, and TensorRT refuses int32 biases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from optimize.recipes.graphs import drop_unused_weights
from optimize.recipes.quantize.edit import FreshNames, add_tensor, insert
from optimize.recipes.quantize.form import Affine, QuantForm, quantize_weight
from optimize.recipes.quantize.layers import Layer


def insert_pairs(
    model: Any, layers: Iterable[Layer], table: Mapping[str, Affine], form: QuantForm
) -> None:
    """Quantize `layers` of the ONNX model in place; `table` has every activation's parameters."""
    graph = model.graph
    names = FreshNames(graph)
    nodes = {node.name: node for node in graph.node}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    added: dict[str, list[Any]] = {}
    replaced: dict[tuple[str, int | None], str] = {}
    for layer in layers:
        node = nodes[layer.name]
        for name in layer.activations:
            if (name, None) not in replaced:
                added[name] = make_pair(graph, names, name, table[name], form)
                replaced[name, None] = added[name][-1].output[0]
        if layer.weight is not None:
            key = (layer.weight, layer.axis)
            if key not in replaced:
                reader = _weight(graph, names, weights[layer.weight], layer.axis)
                added.setdefault(layer.weight, []).append(reader)
                replaced[key] = reader.output[0]
            node.input[1] = replaced[key]
        for index, name in enumerate(node.input):
            node.input[index] = replaced.get((name, None), name)
    insert(graph, added, {})
    drop_unused_weights(graph)


def make_pair(
    graph: Any, names: FreshNames, name: str, parameters: Affine, form: QuantForm
) -> list[Any]:
    """QuantizeLinear and DequantizeLinear for the activation `name`, their constants stored."""
    from onnx import helper

    zero = np.array(parameters.zero, np.uint8 if form.activation == "u8" else np.int8)
    scale = add_tensor(graph, names.new(f"{name}_scale"), np.array(parameters.scale))
    point = add_tensor(graph, names.new(f"{name}_zero_point"), zero)
    integer, real = names.new(f"{name}_quantized"), names.new(f"{name}_dequantized")
    return [
        helper.make_node(operator, [given, scale, point], [made], name=names.new(f"{made}_node"))
        for operator, given, made in (
            ("QuantizeLinear", name, integer),
            ("DequantizeLinear", integer, real),
        )
    ]


def _weight(graph: Any, names: FreshNames, tensor: Any, axis: int) -> Any:
    from onnx import helper, numpy_helper

    integers, scales = quantize_weight(numpy_helper.to_array(tensor), axis)
    inputs = [
        add_tensor(graph, names.new(f"{tensor.name}_quantized"), integers),
        add_tensor(graph, names.new(f"{tensor.name}_scale"), scales),
        add_tensor(graph, names.new(f"{tensor.name}_zero_point"), np.zeros(len(scales), np.int8)),
    ]
    real = names.new(f"{tensor.name}_dequantized")
    return helper.make_node(
        "DequantizeLinear", inputs, [real], name=names.new(f"{real}_node"), axis=axis
    )
