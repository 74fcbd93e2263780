from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlctl.optimize.recipes.base import NotApplicableError, Recipe
from mlctl.optimize.recipes.quantized import Int4, Int4Trt
from mlctl.optimize.variants.goals import Goals
from tests.optimize.recipes.models import (
    FEATURES,
    answers,
    bench,
    images,
    network,
    operators,
    random,
    write,
)

BLOCK = 64
X = {"x": random(64, FEATURES)}
ANY = Goals(min_centred_cosine=0.0, min_agreement=0.0)
BOTH: list[Recipe] = [Int4(), Int4Trt()]


def products(path: Path, inputs: int = FEATURES, *, hard: bool = False) -> Path:
    """Two matrix products between `x` and `y`; if `hard`, the second spoils all in 4 bits."""
    first, second = random(FEATURES, inputs) / 8, random(inputs, FEATURES, seed=1) / 8
    if hard:
        # One large weight in each block, on an input that is always 0, takes the whole scale.
        second[::16] = 1e4
        first[:, ::16] = 0
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"], name="easy"),
        helper.make_node("MatMul", ["h", "second"], ["y"], name="hard"),
    ]
    return write(path, nodes, {"first": first, "second": second})


def built(recipe: Recipe, source: Path, goals: Goals) -> Path:
    out = source.parent / "out"
    out.mkdir()
    recipe.build(source, out, bench(source, X, goals))
    return out


@pytest.mark.parametrize("recipe", BOTH, ids=lambda recipe: recipe.name)
def test_int4__weights__are_stored_in_four_bits(tmp_path: Path, recipe: Recipe) -> None:
    source = products(tmp_path, inputs=8 * BLOCK)
    out = built(recipe, source, ANY)
    # 4 bits for a weight, and for each block of 32 or more 32 for the scale and 4 for the zero.
    assert (out / "model.onnx").stat().st_size < (5.2 / 32 + 0.02) * source.stat().st_size
    trt = ["DequantizeLinear", "MatMul"] * 2
    assert sorted(operators(out)) == sorted(
        trt if isinstance(recipe, Int4Trt) else ["MatMulNBits"] * 2
    )
    want, have = answers(tmp_path, X)["y"], answers(out, X)["y"]
    assert 0.01 < np.linalg.norm(want - have) / np.linalg.norm(want) < 0.2


def test_int4_trt__graph__has_the_opset_it_needs_and_no_zero_points(tmp_path: Path) -> None:
    model = onnx.load(str(built(Int4Trt(), products(tmp_path), ANY) / "model.onnx"))
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 21
    assert model.ir_version == 10
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    assert kinds == {TensorProto.INT4, TensorProto.FLOAT}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            assert [each.i for each in node.attribute if each.name == "axis"] == [0]


@pytest.mark.parametrize("recipe", BOTH, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_int4__an_old_opset__is_converted(tmp_path: Path, recipe: Recipe, opset: int) -> None:
    """Until opset 17 the axes of ReduceMean are an attribute, which a later one rejects."""
    source = products(tmp_path)
    model = onnx.load(str(source))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMean", ["h"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("Sub", ["h", "mean"], ["centred"]),
            helper.make_node("MatMul", ["centred", "second"], ["y"], name="centred_product"),
        ]
    )
    del model.graph.node[1]
    model.opset_import[0].version = opset
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(source))
    out = built(recipe, source, ANY)
    onnx.checker.check_model(onnx.load(str(out / "model.onnx")), full_check=True)
    want, have = answers(tmp_path, X)["y"], answers(out, X)["y"]
    assert 0.01 < np.linalg.norm(want - have) / np.linalg.norm(want) < 0.2


@pytest.mark.parametrize("recipe", BOTH, ids=lambda recipe: recipe.name)
def test_int4__costly_layers__stay_in_float(tmp_path: Path, recipe: Recipe) -> None:
    source = products(tmp_path, hard=True)
    out = tmp_path / "out"
    out.mkdir()
    goals = Goals(min_centred_cosine=0.95, min_agreement=0.0)
    details = recipe.build(source, out, bench(source, X, goals))
    assert [(cost.layer, cost.kept_in_float) for cost in details.layers] == [
        ("hard", True),
        ("easy", False),
    ]
    assert details.layers[0].distance > 5 * details.layers[1].distance
    assert details.settings["layers left in float"] == "1"


def test_int4__convolutions_and_heads__only_products_are_quantized(tmp_path: Path) -> None:
    source, out = network(tmp_path), tmp_path / "out"
    out.mkdir()
    Int4().build(source, out, bench(source, images(), ANY))
    # A Gemm becomes a product in 4 bits and a sum: kernels exist for products only.
    assert sorted(operators(out)) == [
        "Add",
        "Conv",
        "Flatten",
        "MatMulNBits",
        "MatMulNBits",
        "Relu",
        "Tanh",
    ]
    want, have = answers(tmp_path, images())["y"], answers(out, images())["y"]
    assert np.linalg.norm(want - have) / np.linalg.norm(want) < 0.2


@pytest.mark.parametrize("recipe", BOTH, ids=lambda recipe: recipe.name)
def test_int4__a_model_without_products__is_rejected(tmp_path: Path, recipe: Recipe) -> None:
    source = write(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {})
    with pytest.raises(NotApplicableError, match="the model has no MatMul"):
        recipe.build(source, tmp_path, bench(source, X))
