"""Divide the operators of a graph into layers.

A layer is a node with constant weights and the operators behind it up to the next such node. It
is quantized or left in float as a whole, so a search has as many steps as the model has weights.
A node that belongs to no layer stays in float.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from mlctl.optimize.recipes.base import NotApplicableError
from mlctl.optimize.recipes.graphs import captured, is_standard
from mlctl.optimize.recipes.quantize.obstacles import WEIGHT_INPUTS, find_obstacles, not_finite

# Operators whose inputs are all values; of the others only the first one is, or those named.
_ALL_VALUES = {"Add", "Concat", "MatMul", "Max", "Min", "Mul", "Sub", "Sum"}
_VALUES = {"Where": slice(1, 3)}

# Operators that become part of the rounding of what they cut.
_CUTS = frozenset({"Clip", "Relu"})


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with weights, its operator, and the names of all nodes of the layer."""

    name: str
    operator: str
    nodes: tuple[str, ...]


def find_layers(
    graph: Any,
    weighted: Collection[str],
    others: Collection[str] = (),
    *,
    floats: Collection[str] = (),
    min_share: float = 0.0,
) -> tuple[Layer, ...]:
    """Return the layers of the graph, in its order, NotApplicableError if there is none.

    `weighted` are the operators that begin a layer, `others` the names of nodes that can be in one;
    the nodes of `floats`, those whose weights are not finite and those in subgraphs stay in float.
    NotApplicableError also if the layers have less than `min_share` of the graph's weights: the
    variant would be the fp32 graph again.
    """
    weights, floats = _matrices(graph), _with_unfit(graph, floats)
    found: list[tuple[Any, list[str]]] = []
    for node in graph.node:
        if node.name in floats:
            continue
        if _begins_layer(node, weighted, weights):
            found.append((node, [node.name]))
        elif node.name in others and found:
            found[-1][1].append(node.name)
    # A table alone would make a smaller file and no faster model.
    if all(node.op_type == "Gather" for node, _ in found):
        raise NotApplicableError(find_obstacles(graph, weighted, floats))
    own = {node.input[WEIGHT_INPUTS[node.op_type]] for node, _ in found}
    share = sum(weights[name] for name in own) / sum(weights.values())
    if share < min_share:
        raise NotApplicableError(
            f"{_listed(weighted)} nodes have {share:.1%} of the weights (at least {min_share:.0%})"
        )
    return tuple(Layer(node.name, node.op_type, tuple(names)) for node, names in found)


def integer_nodes(
    graph: Any, weighted: Collection[str], operators: Collection[str], floats: Collection[str]
) -> frozenset[str]:
    """Return the names of the nodes between layers that can run in integers without a conversion.

    They are of `operators`, all values they read come from nodes in integers, and all that read
    theirs run in integers. An operator beside one in float would only be rounded to 8 bits: the
    squares and sums of a decomposed LayerNorm or GELU lose what matters. A product of two
    activations runs in integers whatever is beside it, and so does what cuts the output of a
    convolution: that is rounded anyway, and less so without the values that are cut. The nodes of
    `floats` are in float, and those whose weights are not finite.
    """
    weights, floats = _matrices(graph), _with_unfit(graph, floats)
    constants = {tensor.name for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.name not in floats and is_standard(node)]
    heads = {node.name for node in nodes if _begins_layer(node, weighted, weights)}
    products = {node.name for node in nodes if node.op_type == "MatMul"} - heads
    made = {name: node.name for node in graph.node for name in node.output}
    readers: dict[str, list[str]] = {output.name: [""] for output in graph.output}
    for node in graph.node:
        for name in (*node.input, *captured(node)):
            readers.setdefault(name, []).append(node.name)
    convolved = {node.output[0] for node in nodes if node.op_type == "Conv" and node.name in heads}
    always = products | {
        node.name
        for node in nodes
        if node.op_type in _CUTS.intersection(operators)
        and node.input[0] in convolved
        and readers[node.input[0]] == [node.name]
    }
    between = {
        node.name: node
        for node in nodes
        if node.op_type in operators and node.name not in heads | always
    }
    changed = True
    while changed:
        integers = heads | always | between.keys()
        kept = {
            name: node
            for name, node in between.items()
            if all(made.get(value) in integers for value in _values(node) if value not in constants)
            and all(
                reader in integers for value in node.output for reader in readers.get(value, ())
            )
        }
        changed, between = len(kept) < len(between), kept
    return frozenset(always | between.keys())


def _values(node: Any) -> Sequence[str]:
    """Return the inputs of a node that are values, not shapes, indices or limits."""
    if node.op_type in _ALL_VALUES:
        return list(node.input)
    return list(node.input)[_VALUES.get(node.op_type, slice(1))]


def _begins_layer(node: Any, weighted: Collection[str], weights: Collection[str]) -> bool:
    return (
        is_standard(node)
        and node.op_type in weighted
        and node.input[WEIGHT_INPUTS[node.op_type]] in weights
    )


def _matrices(graph: Any) -> dict[str, int]:
    """Return the float weights of two or more dimensions, with their sizes."""
    from onnx import TensorProto

    return {
        tensor.name: math.prod(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) >= 2 and 0 not in tensor.dims
    }


def _with_unfit(graph: Any, floats: Collection[str]) -> frozenset[str]:
    """Return `floats` with the nodes that read a matrix that is not finite."""
    unfit = not_finite(graph)
    return frozenset({*floats, *(n.name for n in graph.node if not unfit.isdisjoint(n.input))})


def _listed(operators: Collection[str]) -> str:
    return ", ".join(sorted(operator for operator in operators if operator != "Gather"))
