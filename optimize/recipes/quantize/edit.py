"""Read an ONNX graph for quantization, insert nodes, and write it for a session."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optimize.recipes.graphs import names, raise_opset
from optimize.recipes.quantize.layers import name_nodes

# The first opset with per-channel DequantizeLinear.
MIN_OPSET = 13


def read_graph(source: Path, *, data: bool) -> Any:
    """Load the ONNX model with unique node names and constants as initializers.

    Functions are inlined and old opsets raised to one with quantization per channel.
    Without `data`, weights in external files stay there.
    """
    import onnx
    from onnx import external_data_helper, inliner

    model = onnx.load(str(source), load_external_data=False)
    if model.functions:
        model = inliner.inline_local_functions(model)
    model = raise_opset(model, MIN_OPSET)
    if data:
        external_data_helper.load_external_data_for_model(model, str(source.parent))
    _lift_constants(model.graph)
    name_nodes(model.graph)
    return model


def _lift_constants(graph: Any) -> None:
    """Turn Constant nodes with a tensor into initializers, as newer exporters do."""
    kept = []
    for node in graph.node:
        value = next((item for item in node.attribute if item.name == "value"), None)
        if node.op_type != "Constant" or value is None:
            kept.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
    _replace_nodes(graph, kept)


class FreshNames:
    """Makes names that no tensor or node of a graph has."""

    def __init__(self, graph: Any) -> None:
        self._taken = names(graph) | {node.name for node in graph.node}

    def new(self, name: str) -> str:
        """Return `name`, with a number appended if it is taken."""
        base, number = name, 1
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


def insert(
    graph: Any, after: Mapping[str, Sequence[Any]], instead: Mapping[str, Sequence[Any]]
) -> None:
    """Insert nodes in topological order.

    `after` lists nodes by the tensor that they read: they follow the node that makes it, or
    come first if it is an input or a constant. `instead` lists the nodes that replace a
    node, by its name.
    """
    made = {name for node in graph.node for name in node.output}
    nodes = [each for name, group in after.items() if name not in made for each in group]
    for node in graph.node:
        nodes.extend(instead.get(node.name, (node,)))
        for name in node.output:
            nodes.extend(after.get(name, ()))
    _replace_nodes(graph, nodes)


def add_tensor(graph: Any, name: str, array: np.ndarray) -> str:
    """Add `array` to the graph's initializers as `name`, and return that."""
    from onnx import numpy_helper

    graph.initializer.append(numpy_helper.from_array(array, name))
    return name


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
        if not (directory / location).exists():
            shutil.copyfile(source.parent / location, directory / location)
    return path


def _replace_nodes(graph: Any, nodes: Sequence[Any]) -> None:
    copies = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
