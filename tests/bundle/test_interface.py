"""What callers of one interface miss at another."""

from __future__ import annotations

import json

import pytest

from mlctl.bundle.interface import PREDICT, broken, from_document, to_document
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec


def tensor(name: str, *shape: int, dtype: Datatype = Datatype.FP32) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def signature(*tensors: TensorSpec) -> Signature:
    """Tensors named `y...` are outputs, others inputs."""
    return Signature(
        inputs=tuple(each for each in tensors if each.name[0] != "y"),
        outputs=tuple(each for each in tensors if each.name[0] == "y"),
    )


X, Y, Y2 = tensor("x", -1, 4), tensor("y", -1, 2), tensor("y2", -1)
BEFORE = signature(X, Y)


@pytest.mark.parametrize(
    "after",
    [
        BEFORE,
        signature(X, Y, Y2),  # callers do not read what they do not know
        signature(tensor("x", -1, -1), Y),  # it takes what they send, and more
    ],
)
def test_interface__additions__are_compatible(after: Signature) -> None:
    assert broken({"m": BEFORE}, {"m": after, "other": BEFORE}) == ()


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (signature(tensor("x2", -1, 4), Y), "input 'x' is missing"),
        (signature(X, tensor("mask", -1), Y), "input 'mask' is new, and callers do not send it"),
        (signature(tensor("x", -1, 5), Y), "input 'x' is FP32 [-1, 5], was FP32 [-1, 4]"),
        (signature(tensor("x", 1, 4), Y), "input 'x' is FP32 [1, 4], was FP32 [-1, 4]"),
        (signature(tensor("x", -1, 4, 1), Y), "input 'x' is FP32 [-1, 4, 1], was FP32 [-1, 4]"),
        (
            signature(tensor("x", -1, 4, dtype=Datatype.INT64), Y),
            "input 'x' is INT64 [-1, 4], was FP32 [-1, 4]",
        ),
        (signature(X, Y2), "output 'y' is missing"),
        (signature(X, tensor("y", -1, 3)), "output 'y' is FP32 [-1, 3], was FP32 [-1, 2]"),
        (signature(X, tensor("y", -1, -1)), "output 'y' is FP32 [-1, -1], was FP32 [-1, 2]"),
        (signature(X, Y2, Y), "output 'y' is at position 2, was at 1"),
    ],
)
def test_interface__used_parts_are_gone__is_incompatible(after: Signature, reason: str) -> None:
    assert f"'m': {reason}" in broken({"m": BEFORE}, {"m": after})


def test_interface__answer_becomes_more_certain__is_compatible() -> None:
    assert broken({"m": signature(X, tensor("y", -1, -1))}, {"m": BEFORE}) == ()


def test_interface__several_differences__names_each_model_and_reason() -> None:
    before = {"a": BEFORE, "b": BEFORE, "c": BEFORE}
    after = {"a": BEFORE, "c": signature(tensor("x2", -1), Y2)}
    assert broken(before, after) == (
        "'b' is missing",
        "'c': input 'x' is missing",
        "'c': input 'x2' is new, and callers do not send it",
        "'c': output 'y' is missing",
    )


def test_interface__to_json_and_back__is_equal() -> None:
    interface = {"a": BEFORE, "/predict": signature(X, Y, Y2)}
    assert from_document(json.loads(json.dumps(to_document(interface)))) == interface


def test_interface__one_model_and_several__compares_the_predict_inputs() -> None:
    other = signature(tensor("x", -1, 7), Y)
    alone, several = {"m": BEFORE}, {"m": BEFORE, "n": other}
    assert broken(alone, {**several, PREDICT: BEFORE}) == ()
    (reason,) = broken(alone, {**several, PREDICT: other})
    assert reason.startswith("'/predict': input 'x' is ")
    assert broken({**several, PREDICT: BEFORE}, alone) == ("'n' is missing",)
