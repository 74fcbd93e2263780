"""Small ONNX files that a test can compute by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def scaling(path: Path, shape: tuple[int | str, ...] = ("rows", 3), factor: float = 2.0) -> Path:
    """`y = factor x`, FP32."""
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    return _save(path, [helper.make_node("Mul", ["x", "factor"], ["y"])], shape, shape, [constant])


def convolution(path: Path) -> Path:
    """A convolution with a bias over [rows, 1, 8, 8], FP32, weights of a fixed seed."""
    draw = np.random.default_rng(0)
    weights = numpy_helper.from_array(draw.normal(size=(8, 1, 3, 3)).astype(np.float32), "w")
    bias = numpy_helper.from_array(draw.normal(size=8).astype(np.float32), "b")
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])
    return _save(path, [node], ("rows", 1, 8, 8), ("rows", 8, 8, 8), [weights, bias])


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    taken: tuple[int | str, ...],
    given: tuple[int | str, ...],
    constants: list[onnx.TensorProto],
) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, taken)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, given)
    graph = helper.make_graph(nodes, "small", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path
