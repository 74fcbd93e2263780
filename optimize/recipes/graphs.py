"""Load a graph with its types inferred, walk it with its subgraphs, and write it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np


def load_typed(source: Path, *, data: bool = True) -> Any:
    """Load the model with every value's type and constants as initializers.

    Types are inferred without the weights, so models over 2 GB load in the same way. Without
    `data`, weights in external files stay there.
    """
    import onnx
    from onnx import external_data_helper, shape_inference

    model = onnx.load(str(source), load_external_data=False)
    model = shape_inference.infer_shapes(raise_opset(model, 1))
    if data:
        external_data_helper.load_external_data_for_model(model, str(source.parent))
    for graph in graphs(model.graph):
        constants_to_weights(graph)
    return model


def raise_opset(model: Any, opset: int) -> Any:
    """Return the model at `opset` or its own later one, with local functions inlined."""
    from onnx import inliner, version_converter

    if model.functions:
        model = inliner.inline_local_functions(model)
    if opset_of(model) >= opset:
        return model
    return version_converter.convert_version(model, opset)


def opset_of(model: Any) -> int:
    """Return the version of the standard operators that the model imports."""
    versions = (entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
    return int(next(versions))


def graphs(graph: Any) -> Iterator[Any]:
    """Yield the graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def subgraphs(node: Any) -> Iterator[Any]:
    """Yield the branches or the body of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(node: Any) -> set[str]:
    """Return the names that the subgraphs of a node read."""
    return {
        name
        for inner in subgraphs(node)
        for part in graphs(inner)
        for each in part.node
        for name in each.input
    }


def sort_nodes(graph: Any) -> None:
    """Put each node after those whose values it, or a graph inside it, reads."""
    nodes = list(graph.node)
    maker = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    before = {
        at: sorted({maker[name] for name in {*node.input, *captured(node)} & maker.keys()})
        for at, node in enumerate(nodes)
    }
    order = list(TopologicalSorter(before).static_order())
    del graph.node[:]
    graph.node.extend(nodes[at] for at in order)


def invalid(path: Path) -> str | None:
    """Return why ONNX's checker or its strict inference of shapes rejects the file; None if valid.

    The text names the operator. Files over 2 GB are read by their path.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())
    return None


def is_standard(node: Any) -> bool:
    """Return whether the operator is one of ONNX's own."""
    return node.domain in {"", "ai.onnx"}


def names(graph: Any) -> set[str]:
    """Return all names of values in the graph and the graphs inside it."""
    found: set[str] = set()
    for inner in graphs(graph):
        found.update(value.name for value in (*inner.input, *inner.output, *inner.initializer))
        for node in inner.node:
            found.update((*node.input, *node.output))
    return found


def float_constants(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the fp32 weights and fill values of the graph and the graphs inside it, by name."""
    from onnx import TensorProto, numpy_helper

    for inner in graphs(graph):
        tensors = [(tensor.name, tensor) for tensor in inner.initializer]
        tensors += [
            (node.output[0], attribute.t)
            for node in inner.node
            if node.op_type == "ConstantOfShape"
            for attribute in node.attribute
        ]
        for name, tensor in tensors:
            if tensor.data_type == TensorProto.FLOAT:
                yield name, numpy_helper.to_array(tensor)


def count_matrices(path: Path) -> int:
    """Return how many fp32 weights of two or more dimensions the file has, in branches too."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    return sum(
        tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) >= 2
        for graph in graphs(model.graph)
        for tensor in graph.initializer
    )


def drop_unused_weights(graph: Any) -> None:
    """Remove weights that no node or output reads."""
    for inner in graphs(graph):
        used = {name for part in graphs(inner) for node in part.node for name in node.input}
        used.update(value.name for part in graphs(inner) for value in part.output)
        for at in reversed(range(len(inner.initializer))):
            if inner.initializer[at].name not in used:
                del inner.initializer[at]


def write_beside(model: Any, source: Path, directory: Path, name: str) -> Path:
    """Write `model`, read without data, as `name`, and copy the data files of `source` beside it.

    Links would not do: a session rejects them, so that no bundle reaches outside itself.
    """
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    path = directory / name
    path.write_bytes(model.SerializeToString())
    locations = {
        ExternalDataInfo(tensor).location
        for tensor in model.graph.initializer
        if uses_external_data(tensor)
    }
    for location in sorted(locations):
        shutil.copyfile(source.parent / location, directory / location)
    return path


def formal_types(node: Any, opset: int) -> list[tuple[str, frozenset[str]]]:
    """Return the schema type of each input, then each output, with the types it allows.

    An operator that is not standard allows none.
    """
    from onnx import defs

    if node.domain not in {"", "ai.onnx"} or not defs.has(node.op_type, ""):
        return [("", frozenset[str]())] * (len(node.input) + len(node.output))
    schema = defs.get_schema(node.op_type, opset, "")
    choices = {
        item.type_param_str: frozenset(item.allowed_type_strs) for item in schema.type_constraints
    }
    formals = [
        sides[min(at, len(sides) - 1)].type_str
        for values, sides in ((node.input, schema.inputs), (node.output, schema.outputs))
        for at in range(len(values))
    ]
    return [(text, choices.get(text, frozenset[str]())) for text in formals]


def constants_to_weights(graph: Any) -> None:
    """Turn Constant nodes into initializers, so that there is one kind of constant to convert."""
    for at in reversed(range(len(graph.node))):
        node = graph.node[at]
        tensor = _constant(node) if node.op_type == "Constant" else None
        if tensor is not None:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
            del graph.node[at]


def _constant(node: Any) -> Any:
    """Return the tensor of a Constant node; None if it holds strings or a sparse tensor."""
    from onnx import numpy_helper

    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return attribute.t
        case "value_float" | "value_floats":
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            return numpy_helper.from_array(np.asarray(value, np.float32))
        case "value_int" | "value_ints":
            value = attribute.i if attribute.name == "value_int" else list(attribute.ints)
            return numpy_helper.from_array(np.asarray(value, np.int64))
    return None
