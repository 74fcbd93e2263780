"""Read a graph for quantization, and divide its operators into layers.

A layer is a node with constant weights and the operators behind it up to the next such node. It
is quantized or left in float as a whole, so a search has as many steps as the model has weights.
A node that belongs to no layer stays in float.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.optimize.recipes.base import NotApplicableError
from mlctl.optimize.recipes.graphs import (
    captured,
    constants_to_weights,
    drop_unused_weights,
    raise_opset,
)
from mlctl.optimize.recipes.quantize.obstacles import WEIGHT_INPUTS, find_obstacles, not_finite

# The first opset with per-channel DequantizeLinear.
_OPSET = 13

# Operators whose inputs are all values; of the others only the first one is, or those named.
_ALL_VALUES = {"Add", "Concat", "MatMul", "Max", "Min", "Mul", "Sub", "Sum"}
_VALUES = {"Where": slice(1, 3)}


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with weights, its operator, and the names of all nodes of the layer."""

    name: str
    operator: str
    nodes: tuple[str, ...]


def read_graph(source: Path, *, products: bool = False) -> Any:
    """Load the ONNX model with weights, unique node names, and constants as initializers.

    Functions are inlined and old opsets raised to one with quantization per channel. With
    `products` each Gemm becomes MatMul and Add, because some kernels exist for MatMul only; one
    that transposes its first factor stays.
    """
    import onnx
    from onnxruntime.quantization import onnx_model

    library: Any = onnx_model
    model = raise_opset(onnx.load(str(source)), _OPSET)
    # Shapes are inferred again: those of exporters include weights, which are transposed here.
    del model.graph.value_info[:]
    constants_to_weights(model.graph)
    _fold_weights(model.graph)
    _fold_factors(model.graph)
    if products:
        _copy_shared_weights(model.graph)
        library.ONNXModel(model).replace_gemm_with_matmul()
    _name_nodes(model.graph)
    drop_unused_weights(model.graph)
    return model


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
    activations runs in integers whatever is beside it. The nodes of `floats` are in float, and
    those whose weights are not finite.
    """
    weights, floats = _matrices(graph), _with_unfit(graph, floats)
    constants = {tensor.name for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.name not in floats and _is_standard(node)]
    heads = {node.name for node in nodes if _begins_layer(node, weighted, weights)}
    products = {node.name for node in nodes if node.op_type == "MatMul"} - heads
    between = {
        node.name: node
        for node in nodes
        if node.op_type in operators and node.name not in heads | products
    }
    made = {name: node.name for node in graph.node for name in node.output}
    readers: dict[str, list[str]] = {output.name: [""] for output in graph.output}
    for node in graph.node:
        for name in (*node.input, *captured(node)):
            readers.setdefault(name, []).append(node.name)
    changed = True
    while changed:
        integers = heads | products | between.keys()
        kept = {
            name: node
            for name, node in between.items()
            if all(made.get(value) in integers for value in _values(node) if value not in constants)
            and all(
                reader in integers for value in node.output for reader in readers.get(value, ())
            )
        }
        changed, between = len(kept) < len(between), kept
    return frozenset(products | between.keys())


def _values(node: Any) -> Sequence[str]:
    """Return the inputs of a node that are values, not shapes, indices or limits."""
    if node.op_type in _ALL_VALUES:
        return list(node.input)
    return list(node.input)[_VALUES.get(node.op_type, slice(1))]


def _begins_layer(node: Any, weighted: Collection[str], weights: Collection[str]) -> bool:
    return (
        _is_standard(node)
        and node.op_type in weighted
        and node.input[WEIGHT_INPUTS[node.op_type]] in weights
    )


def _is_standard(node: Any) -> bool:
    return node.domain in {"", "ai.onnx"}


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


def _copy_shared_weights(graph: Any) -> None:
    """Give each Gemm its own weight: the library transposes it although others read it."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    for number, node in enumerate(graph.node):
        if node.op_type == "Gemm" and node.input[1] in tensors and readers[node.input[1]] > 1:
            copy = graph.initializer.add()
            copy.CopyFrom(tensors[node.input[1]])
            copy.name = node.input[1] = f"{node.input[1]}_{number}"


def _fold_weights(graph: Any) -> None:
    """Replace constants that are copied, transposed or converted to FP32 by what is made of them.

    Exporters write shared weights so, and weights that are stored in 16 bits.
    """
    from onnx import helper, numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    fixed = {output.name for output in graph.output}.union(*map(captured, graph.node))
    folded: dict[tuple[Any, ...], str] = {}
    names: dict[str, str] = {}
    for node in list(graph.node):
        node.input[:] = [names.get(name, name) for name in node.input]
        constant = tensors.get(node.input[0]) if len(node.input) == 1 else None
        if constant is None or node.output[0] in fixed or not _is_standard(node):
            continue
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        key = (node.input[0], node.op_type, str(attributes))
        if node.op_type == "Identity":
            folded[key] = node.input[0]
        elif key not in folded:
            array = _folded(node.op_type, attributes, numpy_helper.to_array(constant))
            if array is None:
                continue
            folded[key] = node.output[0]
            graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
            tensors[node.output[0]] = graph.initializer[-1]
        names[node.output[0]] = folded[key]
        graph.node.remove(node)


def _folded(operator: str, attributes: Mapping[str, Any], array: np.ndarray) -> np.ndarray | None:
    """Return what the operator makes of a constant; None for another operator or type."""
    from onnx import TensorProto

    if operator == "Transpose":
        return np.ascontiguousarray(array.transpose(attributes.get("perm")))
    if operator == "Cast" and attributes["to"] == TensorProto.FLOAT and array.dtype.kind == "f":
        return array.astype(np.float32)
    return None


def _fold_factors(graph: Any) -> None:
    """Move the factors of each Gemm into its constants: the library's kernels mistake them."""
    from onnx import helper, numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for number, node in enumerate(graph.node):
        if node.op_type != "Gemm":
            continue
        if not node.input[-1]:  # an omitted bias; the library would add it
            node.input.pop()
        for at, attribute in ((1, "alpha"), (2, "beta")):
            factor = next((each.f for each in node.attribute if each.name == attribute), 1.0)
            name = node.input[at] if len(node.input) > at else ""
            if factor == 1.0 or (name and name not in tensors):
                continue
            if name:
                array = numpy_helper.to_array(tensors[name])
                node.input[at] = f"{name}_{attribute}_{number}"
                scaled = (array * factor).astype(array.dtype)
                graph.initializer.append(numpy_helper.from_array(scaled, node.input[at]))
            kept = [each for each in node.attribute if each.name != attribute]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(attribute, 1.0)])


def _name_nodes(graph: Any) -> None:
    """Give every node without a name, or with a duplicate one, a unique name."""
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    for position, node in enumerate(graph.node):
        while not node.name or node.name in seen:
            name = f"{node.name or node.op_type}_{position}"
            node.name = name if name not in taken else f"{name}_"
        seen.add(node.name)
