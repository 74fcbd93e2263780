"""Casts of columns: no value changes, and what does not fit is reported."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from mlctl.services.tables.casts import can_cast, cast, common_type, from_values

DOUBLE, WHOLE, TEXT, TRUTH = pa.float64(), pa.int64(), pa.string(), pa.bool_()


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array([Decimal("41.50"), None]), DOUBLE, [41.5, None]),
        (pa.array([Decimal("0.1")], pa.decimal256(60, 40)), DOUBLE, [0.1]),
        (pa.array([Decimal("41.00"), None]), WHOLE, [41, None]),
        (pa.array([True, None, False]), DOUBLE, [1.0, None, 0.0]),
        (pa.array([1, None, 0]), TRUTH, [True, None, False]),
        (pa.nulls(2), DOUBLE, [None, None]),
        (pa.nulls(1), TEXT, [None]),
        (pa.array(["a", None], pa.large_string()), TEXT, ["a", None]),
        (pa.array(["a", None], pa.string_view()), TEXT, ["a", None]),
        (pa.array([b"a", None], pa.binary_view()), TEXT, ["a", None]),
        (pa.array(["1.5", None, "1.5"]).dictionary_encode(), DOUBLE, [1.5, None, 1.5]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([1, None])), DOUBLE, [1.0, 1.0, None]),
        (pa.array([" 41.0 ", "-7", None]), WHOLE, [41, -7, None]),
        (pa.array([41.0, None]), WHOLE, [41, None]),
        (pa.array(["2026-01-02", None]), pa.date32(), [dt.date(2026, 1, 2), None]),
        (pa.array([[1, None], None]), pa.list_(DOUBLE), [[1.0, None], None]),
        (pa.array([2**53 + 1]), DOUBLE, [float(2**53)]),
    ],
)
def test_cast__values_that_fit__keep_their_meaning_and_gaps(
    column: pa.Array, kind: pa.DataType, expected: list[object]
) -> None:
    found, misfits = cast(pa.chunked_array([column]), kind)
    assert (found.type, found.to_pylist(), misfits) == (kind, expected, {})


@pytest.mark.parametrize(
    ("column", "kind", "shown"),
    [
        (pa.array([None, 41.5]), WHOLE, "41.5"),
        (pa.array([None, Decimal("41.5")]), WHOLE, "41.5"),
        (pa.array([None, "1e400"]), DOUBLE, "'1e400'"),
        (pa.array([None, "1_0"]), DOUBLE, "'1_0'"),
        (pa.array([None, 2]), TRUTH, "2"),
        (pa.array([None, 300]), pa.int8(), "300"),
        (pa.array([None, 8000]), TEXT, "8000"),
        (pa.array([None, b"\xff"]), TEXT, "b'\\xff'"),
        (pa.array([None, [1.5]]), pa.list_(WHOLE), "[1.5]"),
    ],
)
def test_cast__a_value_that_does_not_fit__is_null_and_reported(
    column: pa.Array, kind: pa.DataType, shown: str
) -> None:
    found, misfits = cast(column, kind)
    assert (found.to_pylist(), misfits) == ([None, None], {1: shown})


def test_cast__whole_number_beyond_floats__does_not_fit_exactly() -> None:
    column = pa.array([2**53, 2**53 + 1])
    assert cast(column, DOUBLE, exact=True)[1] == {1: str(2**53 + 1)}


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([41, 41.0, "41", True], WHOLE, [41, 41, 41, 1]),
        ([41, 0.5, 10**20], DOUBLE, [41.0, 0.5, 1e20]),
        ([{"x": 1}, None], pa.struct([("x", DOUBLE)]), [{"x": 1.0}, None]),
        ([10**30], pa.decimal128(38, 0), [Decimal(10**30)]),
    ],
)
def test_from_values__of_several_types__fit_if_they_are_equal(
    values: list[object], kind: pa.DataType, expected: list[object]
) -> None:
    found, misfits = from_values(values, kind)
    assert (found.to_pylist(), misfits) == (expected, {})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (41.5, WHOLE),
        (2**70, WHOLE),
        (1, TEXT),
        ("\ud800", TEXT),
        ([1.5], pa.list_(WHOLE)),
        ({"x": 1, "y": 2}, pa.struct([("x", WHOLE)])),
        ([1], pa.struct([("x", WHOLE)])),
        ({}, DOUBLE),
    ],
)
def test_from_values__value_of_another_kind__is_never_narrowed(
    value: object, kind: pa.DataType
) -> None:
    found, misfits = from_values([None, value], kind)
    assert (found.to_pylist(), list(misfits)) == ([None, None], [1])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((WHOLE, DOUBLE, pa.null()), DOUBLE),
        ((TEXT, pa.large_string(), pa.dictionary(pa.int8(), TEXT)), pa.large_string()),
        ((pa.string_view(), TEXT), TEXT),
        ((pa.dictionary(pa.int8(), TEXT),) * 2, pa.dictionary(pa.int8(), TEXT)),
        ((WHOLE, TEXT), None),
    ],
)
def test_common_type__of_several_files__represents_all_their_values(
    kinds: tuple[pa.DataType, ...], expected: pa.DataType | None
) -> None:
    assert common_type(kinds) == expected


def test_can_cast__numbers_as_text__are_not_meant() -> None:
    assert can_cast(TRUTH, DOUBLE)
    assert can_cast(TEXT, DOUBLE)
    assert not can_cast(WHOLE, TEXT)
    assert not can_cast(pa.list_(WHOLE), DOUBLE)
