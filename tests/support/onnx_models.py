"""ONNX graphs in the forms that exporters of other libraries write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(17)


def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    **options: Any,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [
        helper.make_opsetid("", options.pop("opset", 17)),
        helper.make_opsetid("ai.onnx.ml", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, **{"ir_version": 8, **options})


def weights_as_inputs() -> onnx.ModelProto:
    """A linear layer of IR version 3, where every weight is an input of the graph too."""
    weight, bias = RNG.standard_normal((4, 3), dtype=np.float32), np.ones(3, np.float32)
    return model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        [value("x", "n", 4), value("w", 4, 3), value("b", 3)],
        [value("y", "n", 3)],
        {"w": weight, "b": bias},
        ir_version=3,
        opset=9,
    )


def with_threshold(kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A graph with an input without dimensions: one value for all rows."""
    nodes = [
        helper.make_node("Cast", ["limit"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Max", ["x", "number"], ["y"]),
    ]
    return model(nodes, [value("x", "n", 4), value("limit", kind=kind)], [value("y", "n", 4)], {})


def zipped(classes: list[int]) -> onnx.ModelProto:
    """A graph that answers with a map of class to score for each row."""
    share = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, share))
    node = helper.make_node(
        "ZipMap", ["x"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=classes
    )
    output = helper.make_value_info("scores", maps)
    return model([node], [value("x", "n", len(classes))], [output], {})


def fixed_batch() -> onnx.ModelProto:
    """A graph that declares the one row that it was exported with."""
    node = helper.make_node("Relu", ["x"], ["y"])
    return model([node], [value("x", 1, 4)], [value("y", 1, 4)], {})


def recurrent() -> onnx.ModelProto:
    """An LSTM, and a GRU over its states, over rows [batch, time, 3] of any length."""
    hidden = 5
    weights: dict[str, np.ndarray] = {
        "lstm.w": RNG.standard_normal((1, 4 * hidden, 3), dtype=np.float32),
        "lstm.r": RNG.standard_normal((1, 4 * hidden, hidden), dtype=np.float32),
        "lstm.b": RNG.standard_normal((1, 8 * hidden), dtype=np.float32),
        "gru.w": RNG.standard_normal((1, 3 * hidden, hidden), dtype=np.float32),
        "gru.r": RNG.standard_normal((1, 3 * hidden, hidden), dtype=np.float32),
        "gru.b": RNG.standard_normal((1, 6 * hidden), dtype=np.float32),
        "axis": np.array([1], np.int64),
        "first": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM", ["steps", "lstm.w", "lstm.r", "lstm.b"], ["lstm"], hidden_size=hidden
        ),
        helper.make_node("Squeeze", ["lstm", "axis"], ["states"]),
        helper.make_node(
            "GRU",
            ["states", "gru.w", "gru.r", "gru.b"],
            ["", "last"],
            hidden_size=hidden,
            linear_before_reset=1,
        ),
        helper.make_node("Squeeze", ["last", "first"], ["embedding"]),
        helper.make_node("Transpose", ["states"], ["tokens"], perm=[1, 0, 2]),
    ]
    return model(
        nodes,
        [value("x", "n", "time", 3)],
        [value("embedding", "n", hidden), value("tokens", "n", "time", hidden)],
        weights,
    )
