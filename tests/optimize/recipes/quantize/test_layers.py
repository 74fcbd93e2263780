"""Which nodes form a layer, and how a graph is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlctl.optimize.recipes.base import NotApplicableError
from mlctl.optimize.recipes.quantize.layers import Layer, find_layers, integer_nodes, read_graph
from tests.optimize.recipes.quantize.nets import save_net

W = np.ones((4, 4), np.float32)
PRODUCTS = ("Gemm", "MatMul")


def save(tmp_path: Path, nodes: list[Any]) -> Path:
    constants = {"w": W, "large": np.ones((40, 40), np.float32), "bias": W[0]}
    return save_net(tmp_path, nodes, constants, (["n", 4], ["n", "m"]))


def layers(
    tmp_path: Path, nodes: list[Any], others: tuple[str, ...] = (), **options: Any
) -> tuple[Layer, ...]:
    return find_layers(read_graph(save(tmp_path, nodes)).graph, PRODUCTS, others, **options)


def product(*inputs: str, made: str = "y", name: str = "p", operator: str = "MatMul") -> Any:
    return helper.make_node(operator, list(inputs), [made], name=name)


def test_find_layers__operators_behind_a_product__belong_to_its_layer(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="before"),
        product("r", "w", made="a", name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Neg", ["b"], ["c"], name="neg"),
        product("c", "w", name="two", operator="Gemm"),
    ]
    assert layers(tmp_path, nodes, ("before", "relu")) == (
        Layer("one", "MatMul", ("one", "relu")),
        Layer("two", "Gemm", ("two",)),
    )


OPERATORS = ("Add", "Mul", "Relu", "Reshape", "Softmax", "Where")


def between(tmp_path: Path, nodes: list[Any], floats: tuple[str, ...] = ()) -> set[str]:
    graph = read_graph(save(tmp_path, nodes)).graph
    return set(integer_nodes(graph, PRODUCTS, OPERATORS, floats))


def test_integer_nodes__operators_between_products__run_in_integers(tmp_path: Path) -> None:
    nodes = [
        product("x", "w", made="a", name="one"),
        helper.make_node("Add", ["a", "bias"], ["b"], name="bias_add"),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("Add", ["c", "a"], ["d"], name="residual"),
        product("d", "w", name="two"),
    ]
    assert between(tmp_path, nodes) == {"bias_add", "relu", "residual"}
    assert between(tmp_path, nodes, floats=("relu",)) == set()


def test_integer_nodes__squares_and_sums_of_a_normalization__stay_in_float(tmp_path: Path) -> None:
    nodes = [
        product("x", "w", made="a", name="one"),
        helper.make_node("Add", ["a", "bias"], ["b"], name="residual"),
        helper.make_node("ReduceMean", ["b"], ["mean"], name="mean"),
        helper.make_node("Sub", ["b", "mean"], ["centred"], name="centre"),
        helper.make_node("Mul", ["centred", "centred"], ["squares"], name="square"),
        helper.make_node("ReduceMean", ["squares"], ["variance"], name="variance"),
        helper.make_node("Sqrt", ["variance"], ["deviation"], name="root"),
        helper.make_node("Div", ["centred", "deviation"], ["normal"], name="divide"),
        helper.make_node("Mul", ["normal", "bias"], ["scaled"], name="scale"),
        product("scaled", "w", name="two"),
    ]
    assert between(tmp_path, nodes) == set()


def test_integer_nodes__product_of_two_activations__runs_in_integers(tmp_path: Path) -> None:
    nodes = [
        product("x", "w", made="keys", name="one"),
        helper.make_node("Transpose", ["x"], ["turned"], name="turn"),
        product("keys", "turned", made="scores", name="attention"),
        helper.make_node("Exp", ["scores"], ["y"], name="exp"),
    ]
    assert between(tmp_path, nodes) == {"attention"}


def test_integer_nodes__read_by_a_branch__stay_in_float(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Exp", ["b"], ["branch_y"])],
        "branch",
        [],
        [helper.make_tensor_value_info("branch_y", TensorProto.FLOAT, None)],
    )
    nodes = [
        product("x", "w", made="a", name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        product("b", "w", made="c", name="two"),
        helper.make_node("ReduceMax", ["c"], ["top"], keepdims=0, name="top"),
        helper.make_node("Greater", ["top", "one"], ["is_large"], name="compare"),
        helper.make_node(
            "If", ["is_large"], ["y"], then_branch=branch, else_branch=branch, name="if"
        ),
    ]
    constants = {"w": W, "one": np.array(1, np.float32)}
    source = save_net(tmp_path, nodes, constants, (["n", 4], ["n", 4]))
    assert integer_nodes(read_graph(source).graph, PRODUCTS, OPERATORS, ()) == frozenset()


def test_find_layers__products_without_a_constant_matrix__are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match="weight of MatMul 'p' is its first factor"):
        layers(tmp_path, [product("w", "x")])
    turned = helper.make_node("Transpose", ["x"], ["t"], name="turn")
    with pytest.raises(NotApplicableError, match="weight of MatMul 'p' is computed by Transpose"):
        layers(tmp_path, [turned, product("x", "t")])


def test_find_layers__a_small_share_of_the_weights__is_rejected(tmp_path: Path) -> None:
    nodes = [
        product("x", "w", made="a"),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0, name="sum"),
        helper.make_node("Add", ["a", "sum"], ["y"], name="add"),
    ]
    with pytest.raises(NotApplicableError, match=r"have 1\.0% of the weights \(at least 10%\)"):
        layers(tmp_path, nodes, min_share=0.1)


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
    constants = {"w": weight, "h": weight.astype(np.float16)}
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
