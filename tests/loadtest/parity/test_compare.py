"""Outputs compared with the expected ones."""

from __future__ import annotations

import numpy as np
import pytest

from mlctl.loadtest.parity.compare import PathComparison, PathVerdict, compare, other_bits
from mlctl.loadtest.parity.paths import json_limitation, text_limitation

WANT = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def found(
    have: np.ndarray, *, want: np.ndarray = WANT, allowed: float | None = None, batched: bool = True
) -> PathComparison:
    close = None if allowed is None else lambda _array: allowed
    return compare("path", "rows", 3, [{"y": want}], [{"y": have}], close, batched=batched)


def test_compare__same_bits__are_the_same() -> None:
    finding = found(WANT.copy())
    assert (finding.verdict, finding.rows, finding.differing) == (PathVerdict.SAME, 3, 0)
    assert finding.passed


def test_compare__last_bit_of_a_row__differs_without_a_tolerance() -> None:
    have = WANT.copy()
    have[1, 0] = np.nextafter(have[1, 0], np.float32(9))
    finding = found(have)
    assert (finding.verdict, finding.differing, finding.output) == (PathVerdict.DIFFERS, 1, "y")
    assert finding.largest == pytest.approx(2.4e-7, rel=0.1)
    assert not finding.passed
    assert found(have, allowed=1e-6).verdict is PathVerdict.CLOSE
    assert found(have, allowed=1e-7).verdict is PathVerdict.DIFFERS


def test_compare__minus_zero__has_other_bits_and_no_difference() -> None:
    zero = np.zeros((1, 1), np.float32)
    finding = found(-zero, want=zero)
    assert (finding.verdict, finding.differing, finding.largest) == (PathVerdict.DIFFERS, 1, 0.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_compare__nan_or_infinity__is_beyond_every_tolerance(wrong: float) -> None:
    have = WANT.copy()
    have[2, 1] = wrong
    finding = found(have, allowed=1e9)
    assert (finding.verdict, finding.largest) == (PathVerdict.DIFFERS, None)
    assert found(have, want=have.copy(), allowed=0.0).verdict is PathVerdict.SAME


@pytest.mark.parametrize(
    "have", [WANT.astype(np.float64), WANT[:2], WANT.reshape(2, 3)], ids=["dtype", "rows", "shape"]
)
def test_compare__other_dtype_or_shape__differs_in_all_rows(have: np.ndarray) -> None:
    finding = found(have, allowed=1e9)
    assert (finding.verdict, finding.differing) == (PathVerdict.DIFFERS, 3)
    assert "expected float32 [3, 2]" in finding.detail


def test_compare__missing_output_or_answer__differs() -> None:
    gone = compare("path", "rows", 3, [{"y": WANT}], [{"z": WANT}], None)
    assert (gone.verdict, gone.detail) == (
        PathVerdict.DIFFERS,
        "it is missing, expected float32 [3, 2]",
    )
    none = compare("path", "rows", 3, [{"y": WANT}], [], None)
    assert (none.verdict, none.detail) == (PathVerdict.DIFFERS, "0 answers to 1 requests")


def test_compare__several_outputs__names_the_worst() -> None:
    want = {"a": WANT, "b": WANT}
    have = {"a": WANT + np.float32(1e-3), "b": WANT + np.float32(1)}
    finding = compare("path", "rows", 3, [want], [have], lambda _array: 0.01)
    assert (finding.output, finding.verdict) == ("b", PathVerdict.DIFFERS)


def test_compare__text__has_no_tolerance() -> None:
    want = np.array([[b"a"], [b"b"]], object)
    finding = found(np.array([[b"a"], [b"c"]], object), want=want, allowed=1e9)
    assert (finding.verdict, finding.differing) == (PathVerdict.DIFFERS, 1)
    assert found(want.copy(), want=want).verdict is PathVerdict.SAME


def test_compare__no_batch_dimension__counts_one_row() -> None:
    assert found(WANT.copy(), batched=False).rows == 1
    assert other_bits(WANT, WANT + 1, batched=False).tolist() == [True]


def test_limitations__values_outside_json_and_text__are_named() -> None:
    assert json_limitation({"x": WANT}) is None
    assert "'x' has a NaN" in (json_limitation({"x": np.array([np.nan])}) or "")
    assert "FP16" in (json_limitation({"x": WANT.astype(np.float16)}) or "")
    assert "not UTF-8" in (json_limitation({"x": np.array([b"\xff"], object)}) or "")
    assert text_limitation({"x": np.array(["ä".encode()], object)}) is None
