from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mlctl.bundle.output_kinds import OutputKind
from mlctl.optimize.metrics.parity import centred_cosine, compare

WANT = {"y": np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)}


def test_compare__equal_answers__have_no_distance() -> None:
    parity = compare(WANT, WANT)
    assert (parity.max_abs_error, parity.relative_l2) == (0.0, 0.0)
    assert parity.centred_cosine == pytest.approx(1.0)
    assert parity.agreement == 1.0


def test_compare__two_outputs__the_worst_counts() -> None:
    want = {"a": np.ones((2, 1)), "b": np.array([[3.0], [4.0]])}
    found = {"a": np.ones((2, 1)), "b": np.array([[3.0], [1.0]])}
    parity = compare(want, found)
    assert parity.max_abs_error == 3.0
    assert parity.relative_l2 == pytest.approx(3.0 / 5.0)
    assert parity.agreement is None


def test_centred_cosine__a_large_constant_part__hides_nothing() -> None:
    want = np.array([[1000.0, 1.0], [1000.0, -1.0]])
    plain = np.ravel(want) @ np.ravel(-want) / np.sum(want**2)
    flipped = want * [1.0, -1.0]
    assert plain < 0
    assert np.ravel(want) @ np.ravel(flipped) / np.sum(want**2) > 0.999
    assert centred_cosine(want, flipped) == pytest.approx(-1.0)


def test_centred_cosine__constant_outputs__is_1_or_0() -> None:
    constant = np.ones((3, 2))
    assert centred_cosine(constant, constant) == 1.0
    assert centred_cosine(constant, np.arange(6.0).reshape(3, 2)) == 0.0


def test_compare__a_few_rows_at_a_time__gives_what_all_at_once_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(1)
    want = {"y": random.normal(size=(9, 4, 3)).astype(np.float32)}
    found = {"y": want["y"] + random.normal(size=(9, 4, 3)).astype(np.float32) / 10}
    whole = compare(want, found)
    for values in (1, 30):
        monkeypatch.setattr("mlctl.optimize.data.rows._SLICE_VALUES", values)
        sliced = compare(want, found)
        assert sliced.max_abs_error == whole.max_abs_error
        assert sliced.relative_l2 == pytest.approx(whole.relative_l2, rel=1e-12)
        assert sliced.centred_cosine == pytest.approx(whole.centred_cosine, rel=1e-12)


def test_compare__large_outputs__takes_less_memory_than_one_copy_of_them() -> None:
    large = np.ones((64, 400_000), np.float32)
    tracemalloc.start()
    compare({"embedding": large[:, None]}, {"embedding": large[:, None]})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < large.nbytes


def test_compare__every_output__is_judged_by_its_kind() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]])
    want = {"scores": scores, "label": scores.argmax(axis=1), "forecast": scores[:, :1] * 1000}
    found = {
        "scores": np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]),
        "label": np.array([0, 1, 1, 0]),
        "forecast": want["forecast"] * 1.5,
    }
    parity = compare(want, found)
    kinds = [each.kind for each in parity.outputs.values()]
    assert kinds == [OutputKind.CLASS_SCORES, OutputKind.LABELS, OutputKind.NUMBERS]
    assert [each.agreement for each in parity.outputs.values()] == [0.75, 0.5, None]
    assert parity.agreement == 0.5
    assert parity.outputs["forecast"].relative_l2 == pytest.approx(0.5)


def test_compare__text__agrees_or_not() -> None:
    want = {"y": np.array([b"a", b"b"], object)}
    assert compare(want, {"y": np.array([b"a", b"c"], object)}).agreement == 0.5


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, "'y' is missing"),
        ({"y": np.zeros((2, 3))}, r"has shape \[2, 3\], expected \[2, 2\]"),
        ({"y": np.array([[1.0, np.nan], [0.0, 2.0]])}, "NaN"),
        ({"y": np.array([[1.0, np.inf], [0.0, 2.0]])}, "infinite"),
    ],
)
def test_compare__answers_of_another_form__are_rejected(
    found: dict[str, np.ndarray], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        compare(WANT, found)


def repeated(row: list[float]) -> np.ndarray:
    return np.array([row] * 5, np.float32)


@pytest.mark.parametrize(
    ("want", "varies"),
    [
        (repeated([0.0, 0.0]), False),
        (repeated([3.0, -1e9]), False),
        (repeated([3.0, -1e9]) * np.linspace(1.0, 1.000001, 5, dtype=np.float32)[:, None], False),
        (repeated([0.0, 1e9]) + np.eye(5, 2, dtype=np.float32), True),
        (np.array([7, 7, 7]), False),
        (np.array([10**9, 10**9 + 1]), True),
        (np.array([True, False]), True),
        (np.array([b"a", b"a"], object), False),
        (np.array([b"a", b"b"], object), True),
        (np.ones((1, 4)), False),
        (np.ones((3, 0)), False),
    ],
)
def test_compare__reference__varies_beyond_rounding_or_not(want: np.ndarray, varies: bool) -> None:
    parity = compare({"y": want}, {"y": want})
    assert parity.outputs["y"].varies is varies
    assert parity.constant == (() if varies else ("y",))


def test_compare__noise_of_a_constant_output__is_not_the_worst_cosine() -> None:
    noise = 1 + np.random.default_rng(0).normal(0, 1e-7, (2, 9, 1)).astype(np.float32)
    varying = np.arange(9.0)[:, None]
    parity = compare({"c": noise[0], "v": varying}, {"c": noise[1], "v": varying})
    assert parity.outputs["c"].centred_cosine < 0.9
    assert parity.centred_cosine == pytest.approx(1.0)
    assert compare({"c": noise[0]}, {"c": noise[1]}).centred_cosine < 0.9
