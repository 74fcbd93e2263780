"""Answers beside the wanted ones."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.parity.base import not_json, not_text
from loadtest.parity.compare import PathComparison, PathVerdict, compare, other_bits

WANT = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def found(
    have: np.ndarray, *, want: np.ndarray = WANT, allowed: float | None = None, batched: bool = True
) -> PathComparison:
    close = None if allowed is None else lambda _array: allowed
    return compare("way", "rows", 3, [{"y": want}], [{"y": have}], close, batched=batched)


def test_the_same_bits_are_the_same() -> None:
    finding = found(WANT.copy())
    assert (finding.verdict, finding.rows, finding.differing) == (PathVerdict.SAME, 3, 0)
    assert finding.passed


def test_the_last_bit_of_a_row_is_told_and_is_too_much_where_none_may_differ() -> None:
    have = WANT.copy()
    have[1, 0] = np.nextafter(have[1, 0], np.float32(9))
    finding = found(have)
    assert (finding.verdict, finding.differing, finding.output) == (PathVerdict.DIFFERS, 1, "y")
    assert finding.largest == pytest.approx(2.4e-7, rel=0.1)
    assert not finding.passed
    assert found(have, allowed=1e-6).verdict is PathVerdict.CLOSE
    assert found(have, allowed=1e-7).verdict is PathVerdict.DIFFERS


def test_minus_zero_is_another_bit_and_no_difference() -> None:
    zero = np.zeros((1, 1), np.float32)
    finding = found(-zero, want=zero)
    assert (finding.verdict, finding.differing, finding.largest) == (PathVerdict.DIFFERS, 1, 0.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_beyond_every_tolerance(wrong: float) -> None:
    have = WANT.copy()
    have[2, 1] = wrong
    finding = found(have, allowed=1e9)
    assert (finding.verdict, finding.largest) == (PathVerdict.DIFFERS, None)
    assert found(have, want=have.copy(), allowed=0.0).verdict is PathVerdict.SAME


@pytest.mark.parametrize(
    "have", [WANT.astype(np.float64), WANT[:2], WANT.reshape(2, 3)], ids=["dtype", "rows", "shape"]
)
def test_another_form_is_a_difference_of_all_rows(have: np.ndarray) -> None:
    finding = found(have, allowed=1e9)
    assert (finding.verdict, finding.differing) == (PathVerdict.DIFFERS, 3)
    assert "not float32 [3, 2]" in finding.detail


def test_a_missing_output_and_a_missing_answer() -> None:
    gone = compare("way", "rows", 3, [{"y": WANT}], [{"z": WANT}], None)
    assert (gone.verdict, gone.detail) == (PathVerdict.DIFFERS, "it is nothing, not float32 [3, 2]")
    none = compare("way", "rows", 3, [{"y": WANT}], [], None)
    assert (none.verdict, none.detail) == (PathVerdict.DIFFERS, "0 answers to 1 requests")


def test_the_output_that_differs_most_is_told() -> None:
    want = {"a": WANT, "b": WANT}
    have = {"a": WANT + np.float32(1e-3), "b": WANT + np.float32(1)}
    finding = compare("way", "rows", 3, [want], [have], lambda _array: 0.01)
    assert (finding.output, finding.verdict) == ("b", PathVerdict.DIFFERS)


def test_words_are_equal_or_not_whatever_is_allowed_of_numbers() -> None:
    want = np.array([[b"a"], [b"b"]], object)
    finding = found(np.array([[b"a"], [b"c"]], object), want=want, allowed=1e9)
    assert (finding.verdict, finding.differing) == (PathVerdict.DIFFERS, 1)
    assert found(want.copy(), want=want).verdict is PathVerdict.SAME


def test_without_a_batch_dimension_a_request_is_one_row() -> None:
    assert found(WANT.copy(), batched=False).rows == 1
    assert other_bits(WANT, WANT + 1, batched=False).tolist() == [True]


def test_what_json_and_text_cannot_carry() -> None:
    assert not_json({"x": WANT}) is None
    assert "'x' has a NaN" in (not_json({"x": np.array([np.nan])}) or "")
    assert "FP16" in (not_json({"x": WANT.astype(np.float16)}) or "")
    assert "not UTF-8" in (not_json({"x": np.array([b"\xff"], object)}) or "")
    assert not_text({"x": np.array(["ä".encode()], object)}) is None
