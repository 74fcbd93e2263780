"""Read a graph in the form that the library quantizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.optimize.recipes.graphs import (
    captured,
    constants_to_weights,
    drop_unused_weights,
    is_standard,
    names,
    raise_opset,
)

# The first opset with per-channel DequantizeLinear.
_OPSET = 13

# The library makes names of its own with these.
_SUFFIXES = ("_quantized", "_scale", "_zero_point")


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
    _rename_clashes(model.graph)
    drop_unused_weights(model.graph)
    return model


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
    renamed: dict[str, str] = {}
    for node in list(graph.node):
        node.input[:] = [renamed.get(name, name) for name in node.input]
        constant = tensors.get(node.input[0]) if len(node.input) == 1 else None
        if constant is None or node.output[0] in fixed or not is_standard(node):
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
        renamed[node.output[0]] = folded[key]
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


def _rename_clashes(graph: Any) -> None:
    """Rename the values whose names the library would give to values that it adds.

    Inputs, outputs and what a subgraph reads keep their names.
    """
    taken = names(graph)
    fixed = {value.name for value in (*graph.input, *graph.output)}
    fixed = fixed.union(*map(captured, graph.node))
    renamed: dict[str, str] = {}
    for name in sorted(taken - fixed):
        if any(name.endswith(end) and name.removesuffix(end) in taken for end in _SUFFIXES):
            renamed[name] = f"{name}_"
            while renamed[name] in taken:
                renamed[name] += "_"
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]


def _name_nodes(graph: Any) -> None:
    """Give every node without a name, or with a duplicate one, a unique name."""
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    for position, node in enumerate(graph.node):
        while not node.name or node.name in seen:
            name = f"{node.name or node.op_type}_{position}"
            node.name = name if name not in taken else f"{name}_"
        seen.add(node.name)
