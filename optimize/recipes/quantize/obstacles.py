"""Say why no node of a graph can be quantized, with the first node of each reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from mlctl.optimize.recipes.graphs import graphs, is_standard

# The inputs that can be weights, by operator.
WEIGHT_INPUTS = {
    "Conv": 1,
    "ConvTranspose": 1,
    "Gather": 0,
    "Gemm": 1,
    "LSTM": 1,
    "MatMul": 1,
}

_MAX_REASONS = 3


def not_finite(graph: Any) -> frozenset[str]:
    """Return the names of the float matrices that hold infinity or NaN: no scale fits them."""
    from onnx import TensorProto, numpy_helper

    return frozenset(
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) >= 2
        if not np.isfinite(numpy_helper.to_array(tensor)).all()
    )


def find_obstacles(graph: Any, weighted: Collection[str], floats: Collection[str]) -> str:
    """Return why no node of the operators `weighted` can be quantized.

    `floats` are the names of the nodes whose values have no scale.
    """
    operators = sorted(operator for operator in weighted if operator != "Gather")
    found: dict[str, str] = {}
    for kind, sentence in _obstacles(graph, operators, floats):
        found.setdefault(kind, sentence)
    if not found:
        return f"the model has no {', '.join(operators)}"
    return "; ".join(list(found.values())[:_MAX_REASONS])


def _obstacles(
    graph: Any, operators: Collection[str], floats: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the kind of the obstacle and its sentence for each node."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node.op_type for node in graph.node for name in node.output}
    spoiled = not_finite(graph)
    for inner in graphs(graph):
        for node in inner.node:
            if node.op_type not in {*operators, "Gemm"} or not is_standard(node):
                continue
            title = f"{node.op_type} {node.name or node.output[0]!r}"
            if inner is not graph:
                yield "branch", f"{title} is in a branch or a loop, where nothing is quantized"
            elif node.op_type not in operators:
                yield "gemm", f"{title} cannot be written as MatMul"
            elif spoiled & set(node.input):
                weight = min(spoiled & set(node.input))
                yield "not finite", f"weight {weight!r} of {title} holds infinity or NaN"
            elif node.name in floats:
                yield "range", f"{title} has values that are infinite or as large as 1e30"
            else:
                yield _weight_obstacle(node, title, tensors, makers)


def _weight_obstacle(
    node: Any, title: str, tensors: Mapping[str, Any], makers: Mapping[str, str]
) -> tuple[str, str]:
    from onnx import TensorProto

    name = node.input[WEIGHT_INPUTS[node.op_type]]
    tensor = tensors.get(name)
    if tensor is None:
        if node.op_type == "MatMul" and node.input[0] in tensors:
            return "left", f"the weight of {title} is its first factor, not the second"
        maker = f"computed by {makers[name]}" if name in makers else "an input of the model"
        return "computed", f"the weight of {title} is {maker}"
    if tensor.data_type != TensorProto.FLOAT:
        kind = TensorProto.DataType.Name(tensor.data_type)
        return "type", f"weight {name!r} of {title} is {kind}, not FP32"
    form = "is empty" if 0 in tensor.dims else "is no matrix"
    return "form", f"weight {name!r} of {title} {form}"
