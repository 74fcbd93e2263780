"""Columns to tensors, and why rows do not fit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.services.tables.input_columns import InputColumns
from mlctl.services.tables.tensors import to_tensors


def feed(
    dtype: Datatype, *shape: int, columns: tuple[str, ...] = ("c",), name: str = "t"
) -> InputColumns:
    return InputColumns(TensorSpec(name=name, dtype=dtype, shape=(-1, *shape)), columns)


def one(column: pa.Array, wanted: InputColumns, **options: bool) -> tuple[Any, dict[int, str]]:
    """The tensor and rows of the only group, and the reasons."""
    groups, reasons = to_tensors(pa.table({"c": column}), [wanted], **options)
    assert len(groups) <= 1
    return (groups[0].arrays["t"].tolist() if groups else None), reasons


NAN = float("nan")


@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        (pa.array([1, 2], pa.int64()), Datatype.FP32, [1.0, 2.0]),
        (pa.array([1.0, 2.0], pa.float64()), Datatype.INT32, [1, 2]),
        (pa.array([True, False]), Datatype.FP32, [1.0, 0.0]),
        (pa.array([0, 1], pa.int8()), Datatype.BOOL, [False, True]),
        (pa.array(["1.5", " 2 "]), Datatype.FP32, [1.5, 2.0]),
        (pa.array(["7", "-8"]), Datatype.INT64, [7, -8]),
        (pa.array(["true", "0"]), Datatype.BOOL, [True, False]),
        (pa.array([Decimal("1.5"), Decimal("2.0")]), Datatype.FP64, [1.5, 2.0]),
        (pa.array(["a", "b"]).dictionary_encode(), Datatype.BYTES, [b"a", b"b"]),
        (pa.array([b"\xff", b""]), Datatype.BYTES, [b"\xff", b""]),
        (pa.array([2**62 + 1, 3]), Datatype.INT64, [2**62 + 1, 3]),
    ],
)
def test_to_tensors__values_that_fit__are_converted(
    column: pa.Array, dtype: Datatype, expected: list[object]
) -> None:
    assert one(column, feed(dtype)) == (expected, {})


@pytest.mark.parametrize(
    ("column", "dtype", "good", "told"),
    [
        (pa.array([1.0, None]), Datatype.FP32, [1.0], "column 'c' is null"),
        (pa.array([1.0, 2.5]), Datatype.INT32, [1], "column 'c': 2.5 is not a value of int32"),
        (pa.array([1.0, NAN]), Datatype.INT32, [1], "column 'c': nan is not a value of int32"),
        (pa.array([1, 300]), Datatype.UINT8, [1], "column 'c': 300 is not a value of uint8"),
        (pa.array([1, -1]), Datatype.UINT64, [1], "column 'c': -1 is not a value of uint64"),
        (pa.array([1.0, 1e300]), Datatype.FP32, [1.0], "column 'c': 1e+300 is not a value"),
        (pa.array(["1", "one"]), Datatype.FP32, [1.0], "column 'c': 'one' is not a value"),
        (pa.array(["1", "1_0"]), Datatype.FP32, [1.0], "column 'c': '1_0' is not a value"),
        (pa.array(["1", "99999"]), Datatype.INT8, [1], "column 'c': '99999' is not a value"),
        (pa.array(["1", "1e99"]), Datatype.FP32, [1.0], "column 'c': 1e+99 is not a value"),
        (pa.array(["True", "no"]), Datatype.BOOL, [True], "column 'c': 'no' is not a value"),
        (pa.array(["3.0", "2.5"]), Datatype.INT32, [3], "column 'c': '2.5' is not a value"),
        (pa.array(["a", None]), Datatype.BYTES, [b"a"], "column 'c' is null"),
    ],
)
def test_to_tensors__one_value_does_not_fit__its_row_has_the_reason(
    column: pa.Array, dtype: Datatype, good: list[object], told: str
) -> None:
    values, reasons = one(column, feed(dtype))
    assert values == good
    assert list(reasons) == [1]
    assert reasons[1].startswith(told)


def test_to_tensors__text_of_several_kinds__each_row_has_its_reason() -> None:
    column = pa.array(["1", None, "one", "1e99", "inf"])
    assert one(column, feed(Datatype.FP32)) == (
        [1.0, float("inf")],
        {
            1: "column 'c' is null",
            2: "column 'c': 'one' is not a value of float32",
            3: "column 'c': 1e+99 is not a value of float32",
        },
    )


def test_to_tensors__column_of_nulls__rejects_every_row() -> None:
    reasons = dict.fromkeys(range(2), "column 'c' is null")
    assert one(pa.nulls(2), feed(Datatype.FP32)) == (None, reasons)


def test_to_tensors__nan__is_rejected_only_if_forbidden() -> None:
    column = pa.array([[1.0, NAN], [2.0, 3.0]], pa.list_(pa.float32(), 2))
    values, reasons = one(column, feed(Datatype.FP32, 2))
    assert (len(values), reasons) == (2, {})
    assert one(column, feed(Datatype.FP32, 2), forbid_nan=True) == (
        [[2.0, 3.0]],
        {0: "input 't' has a NaN"},
    )


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64())])
def test_to_tensors__lists_of_another_length__are_bad_rows(kind: pa.DataType) -> None:
    column = pa.array([[1, 2], [3], None, [], [4, 5], [6, None]], kind)
    values, reasons = one(column, feed(Datatype.FP32, 2))
    assert values == [[1, 2], [4, 5]]
    assert reasons == {
        1: "column 'c' has 1 values, expected 2",
        2: "column 'c' is null",
        3: "column 'c' has 0 values, expected 2",
        5: "column 'c' is null",
    }


def test_to_tensors__null_in_a_fixed_size_list__is_a_bad_row() -> None:
    column = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    assert one(column, feed(Datatype.INT32, 2)) == ([[1, 2], [3, 4]], {1: "column 'c' is null"})


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.list_(pa.int32())), pa.list_(pa.list_(pa.int32(), 2), 2)]
)
def test_to_tensors__nested_or_flat_lists__are_the_same(kind: pa.DataType) -> None:
    nested = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], kind)
    flat = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert one(nested, feed(Datatype.INT32, 2, 2)) == one(flat, feed(Datatype.INT32, 2, 2))


def test_to_tensors__sliced_and_chunked_columns__are_read() -> None:
    array = pa.array([[i, i + 1] for i in range(10)], pa.list_(pa.float32(), 2))
    table = pa.table({"c": pa.chunked_array([array.slice(2, 3), array.slice(7)])})
    ((group,), reasons) = to_tensors(table, [feed(Datatype.FP32, 2)])
    assert (group.arrays["t"][:, 0].tolist(), reasons) == ([2, 3, 4, 7, 8, 9], {})


def test_to_tensors__several_columns__become_a_matrix() -> None:
    wanted = feed(Datatype.FP32, 2, columns=("p", "q"))
    plain = pa.table({"p": pa.array([1, 2], pa.float32()), "q": pa.array([3, 4], pa.float32())})
    ((group,), _reasons) = to_tensors(plain, [wanted])
    assert group.arrays["t"].tolist() == [[1, 3], [2, 4]]
    mixed = pa.table({"p": ["1", "x", "2"], "q": [3.0, 4.0, None]})
    ((group,), reasons) = to_tensors(mixed, [wanted])
    assert (group.arrays["t"].tolist(), group.rows.tolist()) == ([[1, 3]], [0])
    assert sorted(reasons) == [1, 2]


def test_to_tensors__rows_of_different_lengths__are_grouped() -> None:
    table = pa.table({"c": [[1, 2], [3], [4, 5], None, [6, None]], "d": [1, 2, 3, 4, 5]})
    feeds = [feed(Datatype.INT64, -1), feed(Datatype.INT64, columns=("d",), name="u")]
    groups, reasons = to_tensors(table, feeds)
    found = [(g.rows.tolist(), g.arrays["t"].tolist(), g.arrays["u"].tolist()) for g in groups]
    assert found == [([1], [[3]], [2]), ([0, 2], [[1, 2], [4, 5]], [1, 3])]
    assert reasons == {3: "column 'c' is null", 4: "column 'c' is null"}


def test_to_tensors__no_rows__has_no_group() -> None:
    empty = pa.table({"c": pa.array([], pa.list_(pa.float32(), 2))})
    assert to_tensors(empty, [feed(Datatype.FP32, 2)]) == ([], {})


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.list_(pa.int64(), 2))])
def test_lists__rows_with_one_dynamic_size__are_grouped_by_length(kind: pa.DataType) -> None:
    nested = pa.types.is_list(kind) and pa.types.is_fixed_size_list(kind.value_type)
    values = [[[1, 2]], [[3, 4], [5, 6]], None]
    flat = [[1, 2], [3, 4, 5, 6], None]
    column = pa.array(values if nested else flat, kind)
    groups, reasons = to_tensors(pa.table({"c": column}), [feed(Datatype.FP32, -1, 2)])
    assert [group.arrays["t"].tolist() for group in groups] == [[[[1, 2]]], [[[3, 4], [5, 6]]]]
    assert reasons == {2: "column 'c' is null"}


def test_lists__another_number_of_values__is_rejected_with_the_multiple() -> None:
    column = pa.array([[1, 2], [3, 4, 5]])
    _, reasons = one(column, feed(Datatype.FP32, -1, 2))
    assert reasons == {1: "column 'c' has 3 values, expected a multiple of 2"}
