"""Why no node of a graph is quantized is said of the graph that it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.base import NotApplicableError, Recipe
from mlctl.optimize.recipes.quantize.layers import find_layers, integer_nodes
from mlctl.optimize.recipes.quantize.normalize import read_graph
from mlctl.optimize.recipes.quantized import Int4, Int8Dynamic, Int8Static
from tests.optimize.recipes.quantize.nets import distance, save_net, workbench

PRODUCTS = ("Gemm", "MatMul")
W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
ROWS = Rows({"x": np.random.default_rng(1).normal(size=(32, 4)).astype(np.float32)}, None)
SHAPES: tuple[list[Any], list[Any]] = (["n", 4], ["n", None])


def spoiled(value: float) -> np.ndarray:
    weight = W.copy()
    weight[0, 0] = value
    return weight


def product(*inputs: str, operator: str = "MatMul", **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), ["y"], name="p", **attributes)


def branch(name: str) -> Any:
    """A branch with a product and a weight of its own."""
    return helper.make_graph(
        [helper.make_node("MatMul", ["x", f"{name}_w"], [name], name=f"{name}_product")],
        name,
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(W, f"{name}_w")],
    )


def branches() -> list[Any]:
    return [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0, name="top"),
        helper.make_node("Greater", ["top", "zero"], ["is_positive"], name="compare"),
        helper.make_node(
            *("If", ["is_positive"], ["y"]),
            then_branch=branch("first"),
            else_branch=branch("second"),
            name="if",
        ),
    ]


NEGATIVE = helper.make_node("Neg", ["w"], ["negative"], name="neg")
TO_VECTOR = helper.make_node("MatMul", ["x", "w"], ["vector"], name="p")
FLATTEN = helper.make_node("Flatten", ["vector"], ["y"], name="flatten")
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("the model has no Gemm, MatMul", [helper.make_node("Relu", ["x"], ["y"])], {}),
    ("weight 'w' of MatMul 'p' holds infinity or NaN", [product("x", "w")], {"w": spoiled(np.inf)}),
    ("weight 'w' of MatMul 'p' holds infinity or NaN", [product("x", "w")], {"w": spoiled(np.nan)}),
    ("is in a branch or a loop", branches(), {"zero": np.float32(0)}),
    ("weight of MatMul 'p' is computed by Neg", [NEGATIVE, product("x", "negative")], {"w": W}),
    ("weight of MatMul 'p' is its first factor", [product("w", "x")], {"w": W}),
    ("weight of MatMul 'p' is an input of the model", [product("x", "x")], {}),
    ("weight 'w' of MatMul 'p' is no matrix", [TO_VECTOR, FLATTEN], {"w": W[0]}),
    ("weight 'w' of MatMul 'p' is empty", [product("x", "w")], {"w": W[:, :0]}),
]


@pytest.mark.parametrize(("sentence", "nodes", "weights"), CASES)
def test_find_layers__nothing_to_quantize__says_what_is_in_the_way(
    tmp_path: Path, sentence: str, nodes: list[Any], weights: dict[str, np.ndarray]
) -> None:
    source = save_net(tmp_path, nodes, weights, SHAPES)
    with pytest.raises(NotApplicableError) as caught:
        find_layers(read_graph(source).graph, PRODUCTS)
    assert sentence in str(caught.value)


def test_find_layers__weights_of_another_type__are_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["half", "w"], ["z"], name="p"),
        helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]
    source = save_net(tmp_path, nodes, {"w": W.astype(np.float16)}, SHAPES)
    with pytest.raises(NotApplicableError, match="weight 'w' of MatMul 'p' is FLOAT16, not FP32"):
        find_layers(read_graph(source).graph, PRODUCTS)


def test_find_layers__values_without_a_scale__are_said_to_be(tmp_path: Path) -> None:
    source = save_net(tmp_path, [product("x", "w")], {"w": W}, SHAPES)
    with pytest.raises(NotApplicableError, match="'p' has values that are infinite or as large"):
        find_layers(read_graph(source).graph, PRODUCTS, floats=("p",))


def test_layers__a_weight_that_is_not_finite__leaves_only_its_node_in_float(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
        helper.make_node("MatMul", ["a", "v"], ["y"], name="two"),
    ]
    graph = read_graph(save_net(tmp_path, nodes, {"w": spoiled(np.nan), "v": W}, SHAPES)).graph
    assert [layer.name for layer in find_layers(graph, PRODUCTS)] == ["two"]
    assert integer_nodes(graph, PRODUCTS, (), ()) == frozenset()


@pytest.mark.parametrize("recipe", [Int8Dynamic(), Int4()])
def test_recipes__a_weight_that_is_not_finite__stays_in_float(
    tmp_path: Path, recipe: Recipe
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
        helper.make_node("Clip", ["a", "low", "high"], ["b"], name="clip"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="two"),
    ]
    limits = {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
    source = save_net(tmp_path / "net", nodes, {"w": spoiled(np.inf), "v": W, **limits}, SHAPES)
    made = tmp_path / "made"
    made.mkdir()
    recipe.build(source, made, workbench(source, ROWS, limit=0.2))
    (kept,) = (node for node in onnx.load(made / source.name).graph.node if node.name == "one")
    assert (kept.op_type, list(kept.input)) == ("MatMul", ["x", "w"])
    assert 0 < distance(source, made, ROWS) < 0.2


@pytest.mark.parametrize("recipe", [Int8Static(), Int8Dynamic(), Int4()])
@pytest.mark.parametrize("bias", ["b", ""])
def test_recipes__gemm_with_factors__is_quantized(
    tmp_path: Path, recipe: Recipe, bias: str
) -> None:
    nodes = [product("x", "w", bias, operator="Gemm", alpha=0.5, beta=4.0, transB=1)]
    weights = {"w": W, "b": np.ones(4, np.float32)}
    source = save_net(tmp_path / "source", nodes, weights, (["n", 4], ["n", 4]))
    made = tmp_path / "made"
    made.mkdir()
    details = recipe.build(source, made, workbench(source, ROWS, limit=0.2))
    assert details.layers == ()
    assert 0 < distance(source, made, ROWS) < 0.2


@pytest.mark.parametrize("recipe", [Int8Static(), Int8Dynamic(), Int4()])
def test_recipes__names_that_the_library_makes__are_no_obstacle(
    tmp_path: Path, recipe: Recipe
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "x_scale"], ["x_quantized"], name="one"),
        helper.make_node("Add", ["x_quantized", "x_quantized_scale"], ["a"], name="add"),
        helper.make_node("MatMul", ["a", "a_zero_point"], ["y"], name="two"),
    ]
    weights = {"x_scale": W, "x_quantized_scale": W[0], "x_quantized_scale_": W, "a_zero_point": W}
    source = save_net(tmp_path / "source", nodes, weights, (["n", 4], ["n", 4]))
    made = tmp_path / "made"
    made.mkdir()
    details = recipe.build(source, made, workbench(source, ROWS, limit=0.2))
    assert details.settings["layers quantized"] == "2"
    assert 0 < distance(source, made, ROWS) < 0.2


@pytest.mark.parametrize("recipe", [Int8Dynamic(), Int4()])
def test_recipes__gemm_that_transposes_its_first_factor__is_named(
    tmp_path: Path, recipe: Recipe
) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], name="turn"),
        product("turned", "w", operator="Gemm", transA=1),
    ]
    source = save_net(tmp_path / "source", nodes, {"w": W}, SHAPES)
    with pytest.raises(NotApplicableError, match="Gemm 'p' cannot be written as MatMul"):
        recipe.build(source, tmp_path, workbench(source, ROWS))
