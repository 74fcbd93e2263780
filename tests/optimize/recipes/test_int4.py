from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optimize.goals import Goals
from optimize.recipes.int4 import Int4
from optimize.recipes.quantize.blocks import BLOCK, quantize_blocks, restored_weight
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

X = {"x": random(64, FEATURES)}
ANY = Goals(min_centred_cosine=0.0, min_agreement=0.0)


def products(path: Path, inputs: int = FEATURES, *, hard: bool = False) -> Path:
    """Two matrix products between `x` and `y`; if `hard`, the second spoils all in 4 bits."""
    first, second = random(FEATURES, inputs) / 8, random(inputs, FEATURES, seed=1) / 8
    if hard:
        # One large weight in each block, on an input that is always 0, takes the whole scale.
        second[::BLOCK] = 1e4
        first[:, ::BLOCK] = 0
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"], name="easy"),
        helper.make_node("MatMul", ["h", "second"], ["y"], name="hard"),
    ]
    return write(path, nodes, {"first": first, "second": second})


def built(source: Path, goals: Goals) -> Path:
    out = source.parent / "out"
    out.mkdir()
    Int4().build(source, out, bench(source, X, goals))
    return out


def test_int4__weights__are_stored_in_four_bits(tmp_path: Path) -> None:
    source = products(tmp_path, inputs=8 * BLOCK)
    out = built(source, ANY)
    # 4 bits for a weight and 32 for each scale of a block.
    assert (out / "model.onnx").stat().st_size < (1 / 8 + 1 / BLOCK + 0.02) * source.stat().st_size
    assert sorted(operators(out)) == ["DequantizeLinear"] * 2 + ["MatMul"] * 2
    want, have = answers(tmp_path, X)["y"], answers(out, X)["y"]
    assert 0.01 < np.linalg.norm(want - have) / np.linalg.norm(want) < 0.2


def test_int4__graph__has_the_opset_it_needs(tmp_path: Path) -> None:
    model = onnx.load(str(built(products(tmp_path), ANY) / "model.onnx"))
    assert [entry.version for entry in model.opset_import] == [21]
    assert model.ir_version == 10


def test_int4__answers__are_those_of_the_rounded_weights(tmp_path: Path) -> None:
    source = products(tmp_path, inputs=100)
    out = built(source, ANY)
    first, second = random(FEATURES, 100) / 8, random(100, FEATURES, seed=1) / 8
    want = X["x"] @ restored_weight(first, 1) @ restored_weight(second, 1)
    # The runtime's own kernel for 4 bits may round the activations.
    np.testing.assert_allclose(answers(out, X)["y"], want, atol=0.03 * np.abs(want).max())


def test_int4__costly_layers__stay_in_float(tmp_path: Path) -> None:
    source = products(tmp_path, hard=True)
    out = tmp_path / "out"
    out.mkdir()
    goals = Goals(min_centred_cosine=0.95, min_agreement=0.0)
    details = Int4().build(source, out, bench(source, X, goals))
    assert [(cost.layer, cost.kept_in_float) for cost in details.layers] == [
        ("hard", True),
        ("easy", False),
    ]
    assert details.layers[0].distance > 5 * details.layers[1].distance
    assert details.settings["layers left in float"] == "1"
    assert operators(out) == ["DequantizeLinear", "MatMul", "MatMul"]


def test_int4__convolutions_and_heads__only_products_are_quantized(tmp_path: Path) -> None:
    source, out = network(tmp_path), tmp_path / "out"
    out.mkdir()
    Int4().build(source, out, bench(source, images(), ANY))
    kinds = {
        tensor.name.removesuffix("_int4"): tensor.data_type
        for tensor in onnx.load(str(out / "model.onnx")).graph.initializer
        if not tensor.name.endswith("_scales")
    }
    assert kinds.pop("filter") == kinds.pop("bias") == TensorProto.FLOAT
    assert kinds == {"first": TensorProto.INT4, "second": TensorProto.INT4}
    want, have = answers(tmp_path, images())["y"], answers(out, images())["y"]
    assert np.linalg.norm(want - have) / np.linalg.norm(want) < 0.2


def test_int4__a_model_without_products__is_rejected(tmp_path: Path) -> None:
    source = write(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {})
    with pytest.raises(ValueError, match="no matrix product with weights"):
        Int4().build(source, tmp_path, bench(source, X))


@given(
    channels=st.integers(1, 5),
    inputs=st.integers(1, 3 * BLOCK),
    axis=st.integers(0, 1),
    scale=st.floats(1e-6, 1e6),
)
def test_quantize_blocks__any_weight__moves_within_its_step(
    channels: int, inputs: int, axis: int, scale: float
) -> None:
    weight = random(channels, inputs) * np.float32(scale)
    weight[0, : BLOCK // 2] = 0
    integers, scales = quantize_blocks(weight if axis == 0 else weight.T, axis)
    assert integers.min() >= -8
    assert integers.max() <= 7
    assert (scales > 0).all()
    assert scales.shape[axis] == channels
    assert scales.shape[1 - axis] == -(-inputs // BLOCK)
    left = restored_weight(weight if axis == 0 else weight.T, axis)
    moved = np.abs((left if axis == 0 else left.T) - weight)
    for start in range(0, inputs, BLOCK):
        part = slice(start, start + BLOCK)
        largest = np.abs(weight[:, part]).max(axis=1, keepdims=True)
        # Half a step inside the range, and at most 1.5 steps of 1/8.5 where it is cut off.
        assert (moved[:, part] <= largest * (1.501 / 8.5)).all()
    assert (left[weight.T == 0] == 0).all() if axis else (left[weight == 0] == 0).all()
