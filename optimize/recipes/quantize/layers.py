"""Read a graph for quantization, and divide its operators into layers.

A layer is a node with constant weights and the operators behind it up to the next such node. It
is quantized or left in float as a whole, so a search has as many steps as the model has weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimize.recipes.base import NotApplicableError
from optimize.recipes.graphs import constants_to_weights, raise_opset

# The first opset with per-channel DequantizeLinear.
_OPSET = 13

# The inputs that can be weights, by operator.
_WEIGHTS = {
    "Conv": 1,
    "ConvTranspose": 1,
    "Gather": 0,
    "Gemm": 1,
    "LSTM": 1,
    "MatMul": 1,
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with weights, its operator, and the names of all nodes of the layer."""

    name: str
    operator: str
    nodes: tuple[str, ...]


def read_graph(source: Path, *, products: bool = False) -> Any:
    """Load the ONNX model with weights, unique node names, and constants as initializers.

    Functions are inlined and old opsets raised to one with quantization per channel. With
    `products` each Gemm becomes MatMul and Add, because some kernels exist for MatMul only.
    """
    import onnx
    from onnxruntime.quantization import onnx_model

    library: Any = onnx_model
    model = raise_opset(onnx.load(str(source)), _OPSET)
    # Shapes are inferred again: those of exporters include weights, which are transposed here.
    del model.graph.value_info[:]
    constants_to_weights(model.graph)
    if products:
        _copy_shared_weights(model.graph)
        library.ONNXModel(model).replace_gemm_with_matmul()
    _name_nodes(model.graph)
    return model


def find_layers(
    graph: Any,
    weighted: Collection[str],
    others: Collection[str] = (),
    *,
    min_share: float = 0.0,
) -> tuple[Layer, ...]:
    """Return the layers of the graph, in its order, NotApplicableError if there is none.

    `weighted` are the operators that begin a layer, `others` those that can be in one; nodes in
    subgraphs stay in float. NotApplicableError also if the layers have less than `min_share` of
    the graph's weights: the variant would be the fp32 graph again.
    """
    from onnx import TensorProto

    weights = {
        tensor.name: math.prod(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) >= 2 and 0 not in tensor.dims
    }
    found: list[tuple[Any, list[str]]] = []
    for node in graph.node:
        if node.domain not in {"", "ai.onnx"}:
            continue
        position = _WEIGHTS[node.op_type] if node.op_type in weighted else None
        if position is not None and node.input[position] in weights:
            found.append((node, [node.name]))
        elif node.op_type in others and found:
            found[-1][1].append(node.name)
    # A table alone would make a smaller file and no faster model.
    if all(node.op_type == "Gather" for node, _ in found):
        raise NotApplicableError(f"the model has no {_listed(weighted)} with FP32 weights")
    own = {node.input[_WEIGHTS[node.op_type]] for node, _ in found}
    share = sum(weights[name] for name in own) / sum(weights.values())
    if share < min_share:
        raise NotApplicableError(
            f"{_listed(weighted)} nodes have {share:.1%} of the weights (at least {min_share:.0%})"
        )
    return tuple(Layer(node.name, node.op_type, tuple(names)) for node, names in found)


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


def _name_nodes(graph: Any) -> None:
    """Give every node without a name, or with a duplicate one, a unique name."""
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    for position, node in enumerate(graph.node):
        while not node.name or node.name in seen:
            name = f"{node.name or node.op_type}_{position}"
            node.name = name if name not in taken else f"{name}_"
        seen.add(node.name)
