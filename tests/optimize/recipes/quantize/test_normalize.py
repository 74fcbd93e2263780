"""How a graph is read for quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlctl.optimize.recipes.quantize.layers import find_layers
from mlctl.optimize.recipes.quantize.normalize import read_graph
from tests.optimize.recipes.quantize.nets import save_net
from tests.optimize.recipes.quantize.test_layers import PRODUCTS, W, layers, product


def test_read_graph__names__are_unique_and_stable(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="same"),
        helper.make_node("MatMul", ["b", "w"], ["c"], name="same"),
        helper.make_node("MatMul", ["c", "w"], ["y"], name="MatMul_0"),
    ]
    first = [layer.name for layer in layers(tmp_path, nodes)]
    assert first == ["MatMul_0_", "same", "same_2", "MatMul_0"]
    assert [layer.name for layer in layers(tmp_path, nodes)] == first


def test_read_graph__a_weight_that_two_gemms_transpose__is_copied(tmp_path: Path) -> None:
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="one", transB=1),
        helper.make_node("Gemm", ["a", "w"], ["b"], name="two", transB=1),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="three"),
    ]
    source = save_net(tmp_path, nodes, {"w": weight}, (["n", 4], ["n", 4]))
    read = read_graph(source, products=True)
    assert [node.op_type for node in read.graph.node] == ["MatMul"] * 3
    tensors = {each.name: numpy_helper.to_array(each) for each in read.graph.initializer}
    found = [tensors[node.input[1]] for node in read.graph.node]
    for have, want in zip(found, (weight.T, weight.T, weight), strict=True):
        np.testing.assert_array_equal(have, want)


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
    read = read_graph(tmp_path / "model.onnx")
    found = find_layers(read.graph, PRODUCTS)
    assert [layer.operator for layer in found] == ["MatMul", "MatMul"]
    assert {entry.domain: entry.version for entry in read.opset_import}[""] >= 13


def test_read_graph__constants_that_are_copied_turned_or_converted__are_folded(
    tmp_path: Path,
) -> None:
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    nodes = [
        helper.make_node("Identity", ["w"], ["same"], name="copy"),
        helper.make_node("Identity", ["same"], ["again"], name="copy2"),
        helper.make_node("Transpose", ["again"], ["t1"], name="turn1"),
        helper.make_node("Transpose", ["w"], ["t2"], name="turn2"),
        helper.make_node("Cast", ["h"], ["wide"], to=TensorProto.FLOAT, name="widen"),
        product("x", "t1", made="a", name="one"),
        product("a", "t2", made="b", name="two"),
        product("b", "same", made="c", name="three"),
        product("c", "wide", name="four"),
    ]
    constants: dict[str, np.ndarray] = {"w": weight, "h": weight.astype(np.float16)}
    source = save_net(tmp_path, nodes, constants, (["n", 4], ["n", 4]))
    graph = read_graph(source).graph
    assert [node.op_type for node in graph.node] == ["MatMul"] * 4
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found = [tensors[node.input[1]] for node in graph.node]
    for have, want in zip(found, (weight.T, weight.T, weight, weight), strict=True):
        np.testing.assert_array_equal(have, want)
    # Shared weights stay shared, and what is not read any more is not written.
    assert graph.node[0].input[1] == graph.node[1].input[1]
    assert tensors.keys() == {"w", "t1", "wide"}


def test_read_graph__a_folded_constant_that_others_need__stays(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "turned"], ["branch_y"])],
        "branch",
        [],
        [helper.make_tensor_value_info("branch_y", TensorProto.FLOAT, ["n", 4])],
    )
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], name="turn"),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0, name="top"),
        helper.make_node("Greater", ["top", "zero"], ["is_positive"], name="compare"),
        helper.make_node(
            "If", ["is_positive"], ["y"], then_branch=branch, else_branch=branch, name="if"
        ),
    ]
    constants = {"w": W, "zero": np.array(0, np.float32)}
    source = save_net(tmp_path, nodes, constants, (["n", 4], ["n", 4]))
    assert next(node.name for node in read_graph(source).graph.node) == "turn"
