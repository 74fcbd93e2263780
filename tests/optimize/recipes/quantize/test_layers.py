"""Which nodes form a layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mlctl.optimize.recipes.base import NotApplicableError
from mlctl.optimize.recipes.quantize.layers import Layer, find_layers, integer_nodes
from mlctl.optimize.recipes.quantize.normalize import read_graph
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


def test_integer_nodes__relu_of_a_convolution__runs_in_integers_whatever_reads_it(
    tmp_path: Path,
) -> None:
    def found(*last: Any) -> set[str]:
        nodes = [
            helper.make_node("Conv", ["x", "filters"], ["a"], name="conv"),
            helper.make_node("Relu", ["a"], ["b"], name="relu"),
            *last,
        ]
        constants = {"filters": np.ones((4, 4, 1), np.float32), "w": W}
        source = save_net(tmp_path, nodes, constants, (["n", 4, 4], ["n", 4, 4]))
        graph = read_graph(source).graph
        return set(integer_nodes(graph, ("Conv", "MatMul"), OPERATORS, ()))

    assert found(helper.make_node("Exp", ["b"], ["y"], name="exp")) == {"relu"}
    # Another reader gets the convolution's own output.
    assert found(helper.make_node("Sub", ["b", "a"], ["y"], name="subtract")) == set()
    # A product writes floats as fast.
    relu = helper.make_node("Relu", ["c"], ["d"], name="relu2")
    product_relu = [product("b", "w", made="c"), relu]
    assert found(*product_relu, helper.make_node("Exp", ["d"], ["y"], name="exp")) == {"relu"}


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
