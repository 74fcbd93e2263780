"""Which nodes are layers, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.layers import WEIGHTED, Layer, find_layers
from tests.optimize.recipes.quantize.nets import save_net

W = np.ones((4, 4), np.float32)


def layers(tmp_path: Path, nodes: list[Any], *operators: str) -> tuple[Layer, ...]:
    constants = {"w": W, "deep": np.ones((2, 4, 4), np.float32), "half": W[0]}
    source = save_net(tmp_path, nodes, constants, (["n", 4], ["n", "m"]))
    return find_layers(read_graph(source, data=False).graph, operators or WEIGHTED)


def product(*inputs: str, name: str = "p", operator: str = "MatMul", **settings: Any) -> Any:
    return helper.make_node(operator, list(inputs), ["y"], name=name, **settings)


def test_find_layers__channels__run_along_the_outputs(tmp_path: Path) -> None:
    assert layers(tmp_path, [product("x", "w")]) == (Layer("p", "MatMul", ("x",), "w", 1),)
    gemm = product("x", "w", operator="Gemm")
    assert layers(tmp_path, [gemm]) == (Layer("p", "Gemm", ("x",), "w", 1),)
    turned = product("x", "w", operator="Gemm", transB=1)
    assert layers(tmp_path, [turned]) == (Layer("p", "Gemm", ("x",), "w", 0),)


def test_find_layers__products_without_a_constant_matrix__are_skipped(tmp_path: Path) -> None:
    assert layers(tmp_path, [product("w", "x")]) == ()
    assert layers(tmp_path, [product("x", "w", operator="Gemm", transA=1)]) == ()
    turned = helper.make_node("Transpose", ["x"], ["t"], name="turn")
    assert layers(tmp_path, [turned, product("x", "t")]) == ()


def test_find_layers__a_combining_node__reads_activations_only(tmp_path: Path) -> None:
    doubled = product("x", "x", operator="Add")
    assert layers(tmp_path, [doubled], "Add") == (Layer("p", "Add", ("x",)),)
    assert layers(tmp_path, [product("x", "half", operator="Add")], "Add") == ()


def test_name_nodes__names__are_unique_and_stable(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="same"),
        helper.make_node("MatMul", ["b", "w"], ["c"], name="same"),
        helper.make_node("MatMul", ["c", "w"], ["y"], name="MatMul_0"),
    ]
    first = [layer.name for layer in layers(tmp_path, nodes)]
    assert first == ["MatMul_0_1", "same", "MatMul_2", "MatMul_0"]
    assert [layer.name for layer in layers(tmp_path, nodes)] == first


def test_read_graph__constant_nodes_functions_and_old_opsets__are_read(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(W))
    call = helper.make_node("Twice", ["x"], ["y"], domain="local", name="call")
    twice = helper.make_function(
        "local",
        "Twice",
        ["given"],
        ["made"],
        [
            constant,
            helper.make_node("MatMul", ["given", "w"], ["inner"], name="one"),
            helper.make_node("MatMul", ["inner", "w"], ["made"], name="two"),
        ],
        [helper.make_opsetid("", 11)],
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([call], "net", [x], [y]),
        functions=[twice],
        opset_imports=[helper.make_opsetid("", 11), helper.make_opsetid("local", 1)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "model.onnx")
    read = read_graph(tmp_path / "model.onnx", data=False)
    found = find_layers(read.graph, WEIGHTED)
    assert [layer.operator for layer in found] == ["MatMul", "MatMul"]
    assert {entry.domain: entry.version for entry in read.opset_import}[""] >= 13
