"""Which output feeds which input: by name, by a map, and what does not fit is named."""

from __future__ import annotations

import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.pipeline import make_pipeline, pipeline_signature


def tensor(text: str) -> TensorSpec:
    """NAME:DTYPE:DIM,DIM; rows of 4 FP32 for a name alone."""
    name, dtype, dims = text.split(":") if ":" in text else (text, "FP32", "-1,4")
    shape = tuple(int(dim) for dim in dims.split(","))
    return TensorSpec(name=name, dtype=Datatype(dtype), shape=shape)


def model(inputs: str, outputs: str) -> Signature:
    sides = [tuple(tensor(each) for each in side.split()) for side in (inputs, outputs)]
    return Signature(inputs=sides[0], outputs=sides[1])


def test_make_pipeline__equal_names__are_connected() -> None:
    signatures = {"a": model("x", "y z"), "b": model("y x", "w"), "c": model("w k", "end")}
    made = make_pipeline(signatures)
    assert made.stages == ("a", "b", "c")
    assert made.feeds == {"b": {"y": ("a", "y")}, "c": {"w": ("b", "w")}}
    whole = pipeline_signature(made, signatures)
    assert [spec.name for spec in whole.inputs] == ["x", "k"]
    assert [spec.name for spec in whole.outputs] == ["end"]


def test_make_pipeline__with_a_map__follows_it() -> None:
    signatures = {"a.1": model("x", "y.0"), "b": model("x", "y"), "c": model("p:FP32:-1,-1 y", "z")}
    made = make_pipeline(signatures, ["b.x=a.1.y.0", "c.p=a.1.y.0"])
    assert made.feeds == {
        "b": {"x": ("a.1", "y.0")},
        "c": {"p": ("a.1", "y.0"), "y": ("b", "y")},
    }
    assert [spec.name for spec in pipeline_signature(made, signatures).inputs] == ["x"]


@pytest.mark.parametrize(
    ("inputs", "maps", "told"),
    [
        ("x", [], "no output of stage 'a' (y) feeds an input of a later stage"),
        ("y:INT64:-1,4", [], "output 'y' of stage 'a' is FP32 [-1, 4], input 'y' of stage 'b' is"),
        ("y:FP32:-1,5", [], "input 'y' of stage 'b' is FP32 [-1, 5]"),
        ("y:FP32:-1,4,1", [], "input 'y' of stage 'b' is FP32 [-1, 4, 1]"),
        ("y:FP32:1,4", [], "stage 'a' takes rows in batches, stage 'b' does not"),
        ("x y", ["b.q=a.y"], "stage 'b' has no input 'q'; it has 'x', 'y'"),
        ("y", ["b.y=a.q"], "stage 'a' has no output 'q'; it has 'y'"),
        ("y", ["b.y=c.q"], "'c.q' does not begin with a stage; the stages are a, b"),
        ("y", ["b.y"], "'' does not begin with a stage"),
        ("y", ["a.x=b.z"], "stage 'b' does not run before stage 'a', which it feeds"),
        ("y x:FP32:-1,9", [], "input 'x' is FP32 [-1, 4] for stage 'a', FP32 [-1, 9] for stage"),
    ],
)
def test_make_pipeline__stages_do_not_fit__is_rejected_with_the_reason(
    inputs: str, maps: list[str], told: str
) -> None:
    with pytest.raises(MlctlError) as caught:
        make_pipeline({"a": model("x", "y"), "b": model(inputs, "z")}, maps)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert told in caught.value.message
