"""The layers of a graph that can be quantized.

A layer is a node that reads fp32 activations and, unless it only combines activations
(the Add of a residual), a constant fp32 weight. Nodes in subgraphs stay in float.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

WEIGHTED = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Layer:
    """One node: its unique name, the activations it reads, and its weight with its channel axis."""

    name: str
    operator: str
    activations: tuple[str, ...]
    weight: str | None = None
    axis: int = 0


def name_nodes(graph: Any) -> None:
    """Give every node without a name, or with a duplicate one, a unique name."""
    taken = {node.name for node in graph.node if node.name}
    seen: set[str] = set()
    for position, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            node.name = _free(f"{node.op_type}_{position}", taken)
            taken.add(node.name)
        seen.add(node.name)


def find_layers(graph: Any, operators: Collection[str]) -> tuple[Layer, ...]:
    """Return the layers among the nodes of the types `operators`, in the graph's order.

    Whether a node without weights reads fp32 shows only when it runs, so not every result
    can be quantized. Names must be unique, see `name_nodes`.
    """
    weights = float_weights(graph)
    constants = {tensor.name for tensor in graph.initializer} | {
        output for node in graph.node if node.op_type == "Constant" for output in node.output
    }
    found = []
    for node in graph.node:
        if node.op_type not in operators or node.domain not in {"", "ai.onnx"}:
            continue
        layer = (
            _weighted(node, weights, constants)
            if node.op_type in WEIGHTED
            else _combining(node, constants)
        )
        if layer is not None:
            found.append(layer)
    return tuple(found)


def float_weights(graph: Any) -> dict[str, Any]:
    """Return the constant fp32 tensors of two or more dimensions by name."""
    from onnx import TensorProto

    inputs = {value.name for value in graph.input}
    return {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) >= 2
        and 0 not in tensor.dims
        and tensor.name not in inputs
    }


def _weighted(node: Any, weights: dict[str, Any], constants: set[str]) -> Layer | None:
    activation, weight = node.input[0], weights.get(node.input[1])
    if weight is None or activation in constants:
        return None
    flags = {item.name: item.i for item in node.attribute if item.name in {"transA", "transB"}}
    if node.op_type == "Conv":
        axis = 0
    elif len(weight.dims) != 2 or flags.get("transA"):
        return None
    else:
        axis = 0 if flags.get("transB") else 1
    return Layer(node.name, node.op_type, (activation,), weight.name, axis)


def _combining(node: Any, constants: set[str]) -> Layer | None:
    if any(not name or name in constants for name in node.input):
        return None
    return Layer(node.name, node.op_type, tuple(dict.fromkeys(node.input)))


def _free(name: str, taken: set[str]) -> str:
    base, number = name, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name
