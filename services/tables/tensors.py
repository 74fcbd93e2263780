"""Convert columns to tensors: the rows that match an input, and the reasons of other rows.

Nulls are rejected; a number must be representable in the input's datatype; text must be a number
for a numeric input. NaN is accepted unless it is forbidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.services.model.input_checks import absent_rows
from mlctl.services.tables.casts import Misfits, cast, memory, plain
from mlctl.services.tables.input_columns import InputColumns, is_list

if TYPE_CHECKING:
    import pyarrow as pa

Reasons = dict[int, str]
_NO_GAPS = np.array([], np.int64)


@dataclass(frozen=True, slots=True)
class Tensors:
    """Inputs by name, and the index in the table of each of their rows."""

    arrays: dict[str, np.ndarray]
    rows: np.ndarray


def to_tensors(
    table: pa.Table, feeds: Sequence[InputColumns], *, forbid_nan: bool = False
) -> tuple[list[Tensors], Reasons]:
    """Return the tensors of all valid rows, and by index the reasons of the others.

    Inputs with a dynamic length give one item per length.
    """
    reasons: Reasons = {}
    arrays: dict[str, np.ndarray] = {}
    lengths: dict[str, np.ndarray] = {}
    for feed in feeds:
        if feed.width == DYNAMIC:
            lengths[feed.spec.name] = _lengths(table.column(feed.columns[0]), feed, reasons)
        else:
            arrays[feed.spec.name] = _fixed(table, feed, reasons)
    if lengths:
        return _grouped(table, feeds, arrays, lengths, reasons, forbid_nan=forbid_nan), reasons
    if forbid_nan:
        for feed in feeds:
            _reject_nan(feed, arrays[feed.spec.name], np.arange(table.num_rows), reasons)
    return _kept(arrays, np.arange(table.num_rows), reasons), reasons


def _kept(arrays: dict[str, np.ndarray], rows: np.ndarray, reasons: Reasons) -> list[Tensors]:
    """Drop the rows that have a reason; `rows` are the indices of the arrays' rows."""
    if reasons:
        good = ~np.isin(rows, np.fromiter(reasons, np.int64, len(reasons)))
        arrays = {name: array[good] for name, array in arrays.items()}
        rows = rows[good]
    return [Tensors(arrays, rows)] if len(rows) else []


def _grouped(
    table: pa.Table,
    feeds: Sequence[InputColumns],
    arrays: dict[str, np.ndarray],
    lengths: dict[str, np.ndarray],
    reasons: Reasons,
    *,
    forbid_nan: bool,
) -> list[Tensors]:
    keys = np.stack(list(lengths.values()), axis=1)
    groups: list[Tensors] = []
    for key in np.unique(keys, axis=0):
        rows = np.flatnonzero((keys == key).all(axis=1))
        rows = rows[~np.isin(rows, np.fromiter(reasons, np.int64, len(reasons)))]
        if not len(rows):
            continue
        sizes = dict(zip(lengths, key.tolist(), strict=True))
        group = {name: array[rows] for name, array in arrays.items()}
        for feed in feeds:
            if feed.spec.name in sizes:
                column = plain(table.column(feed.columns[0]).take(rows))
                width = sizes[feed.spec.name]
                group[feed.spec.name] = _values(column, feed, rows, width, reasons).reshape(
                    len(rows), *_row_shape(feed.spec, width)
                )
            if forbid_nan:
                _reject_nan(feed, group[feed.spec.name], rows, reasons)
        groups += _kept({feed.spec.name: group[feed.spec.name] for feed in feeds}, rows, reasons)
    return groups


def _fixed(table: pa.Table, feed: InputColumns, reasons: Reasons) -> np.ndarray:
    """Return all rows of an input with a fixed row size; bad rows have arbitrary values."""
    shape = (table.num_rows, *feed.spec.shape[1:])
    if not feed.columns:
        return absent_rows(feed.spec, table.num_rows)
    if len(feed.columns) > 1:
        return _wide(table, feed, reasons).reshape(shape)
    column = plain(table.column(feed.columns[0]))
    every = np.arange(table.num_rows)
    if not is_list(column.type):
        return _values(column, feed, every, 1, reasons).reshape(shape)
    good = _right_length(column, feed, reasons)
    if good.all():
        return _values(column, feed, every, feed.width, reasons).reshape(shape)
    rows = np.flatnonzero(good)
    filled = np.zeros((table.num_rows, feed.width), _dtype(feed.spec))
    taken = _values(column.take(rows), feed, rows, feed.width, reasons)
    filled[rows] = taken.reshape(len(rows), feed.width)
    return filled.reshape(shape)


def _wide(table: pa.Table, feed: InputColumns, reasons: Reasons) -> np.ndarray:
    import pyarrow as pa

    part = table.select(feed.columns)
    wanted = _dtype(feed.spec)
    uniform = wanted.kind not in "Ob" and all(
        field.type == pa.from_numpy_dtype(wanted) for field in part.schema
    )
    if uniform and all(column.null_count == 0 for column in part.columns):
        batch = part.combine_chunks().to_batches()
        if batch:
            tensor: np.ndarray = batch[0].to_tensor(row_major=True).to_numpy()
            return tensor
    matrix = np.empty((table.num_rows, len(feed.columns)), wanted)
    every = np.arange(table.num_rows)
    for index, name in enumerate(feed.columns):
        matrix[:, index] = _values(
            plain(table.column(name)),
            InputColumns(feed.spec, (name,), feed.nullable),
            every,
            1,
            reasons,
        )
    return matrix


def _elements(column: Any) -> Any:
    """Return the values of all lists in one array, without those of null lists."""
    from pyarrow import types

    if not types.is_fixed_size_list(column.type) or column.null_count:
        return column.flatten()
    # Most jobs need no more of pyarrow.compute than flatten(), which imports it for 40 ms.
    size = column.type.list_size
    return column.values.slice(column.offset * size, len(column) * size)


def _row_shape(spec: TensorSpec, width: int) -> tuple[int, ...]:
    """Return the shape of a row of `width` values, whose shape has one dynamic size."""
    step = -math.prod(spec.shape[1:])
    return tuple(width // step if size == DYNAMIC else size for size in spec.shape[1:])


def _lengths(column: Any, feed: InputColumns, reasons: Reasons) -> np.ndarray:
    """Return the number of values of each row of an input with a dynamic size; -1 for null."""
    found, step = _value_counts(plain(column)), -math.prod(feed.spec.shape[1:])
    for row in np.flatnonzero((found < 0) | (found % step != 0)).tolist():
        problem = f"has {found[row]} values, expected a multiple of {step}"
        problem = "is null" if found[row] < 0 else problem
        reasons.setdefault(row, f"column {feed.columns[0]!r} {problem}")
    return found


def _value_counts(column: Any) -> np.ndarray:
    """Return the number of values of each list, nested or not; -1 for null."""
    import pyarrow as pa

    inner = column.type.value_type
    if is_list(inner):
        return np.array([_nested_length(value) for value in column.to_pylist()], np.int64)
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return lengths
    from pyarrow import compute

    found = compute.fill_null(compute.list_value_length(column), -1)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def _right_length(column: Any, feed: InputColumns, reasons: Reasons) -> np.ndarray:
    """Return which rows have a list, nested or not, with the input's number of values."""
    lengths = _value_counts(column)
    good: np.ndarray = lengths == feed.width
    for row in np.flatnonzero(~good).tolist():
        is_null = lengths[row] < 0
        problem = "is null" if is_null else f"has {lengths[row]} values, expected {feed.width}"
        reasons.setdefault(row, f"column {feed.columns[0]!r} {problem}")
    return good


def _nested_length(value: object) -> int:
    """Return the number of values of nested lists; -1 if one is null."""
    if value is None:
        return -1
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        return len(value) if isinstance(value, list) else 1
    counts = [_nested_length(each) for each in value]
    return -1 if -1 in counts else sum(counts)


def _values(
    column: Any, feed: InputColumns, rows: np.ndarray, width: int, reasons: Reasons
) -> np.ndarray:
    """Return the column's values in order, `width` per row of `rows`."""
    while is_list(column.type):
        column = _elements(column)
    column = plain(column)
    name = feed.columns[0]
    gaps = np.flatnonzero(column.is_null()) if column.null_count else _NO_GAPS
    if not feed.nullable:
        for index in gaps.tolist():
            reasons.setdefault(int(rows[index // width]), f"column {name!r} is null")
    if feed.spec.dtype is Datatype.BYTES:
        return _texts(column)
    values, wrong = _numbers(column, _dtype(feed.spec))
    for index, reason in wrong.items():
        reasons.setdefault(int(rows[index // width]), f"column {name!r}: {reason}")
    if feed.nullable and len(gaps):
        values = values.copy()
        values[gaps] = np.nan
    return values


def _texts(column: Any) -> np.ndarray:
    import pyarrow as pa

    found = np.empty(len(column), object)
    # As bytes, because Arrow's text may be no UTF-8.
    kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    texts = column.cast(kind) if not pa.types.is_large_binary(column.type) else column
    found[:] = [b"" if value is None else value for value in texts.to_pylist()]
    return found


def _numbers(column: Any, dtype: np.dtype[Any]) -> tuple[np.ndarray, Reasons]:
    """Return the column's values as numbers of `dtype`, and by index why some are not numbers."""
    import pyarrow as pa
    from pyarrow import types

    misfits: Misfits = {}
    numbers = (types.is_integer, types.is_floating, types.is_boolean)
    if not any(test(column.type) for test in numbers):
        # Via float64, so that a value that is too large for its datatype is detected.
        column, misfits = cast(
            column, pa.float64() if dtype.kind == "f" else pa.from_numpy_dtype(dtype)
        )
    if column.null_count:
        column = column.fill_null(pa.scalar(0).cast(column.type))
    values = memory(column)
    made, wrong = (values, {}) if values.dtype == dtype else _converted(values, dtype)
    problem = f"is not a value of {dtype.name}"
    return made, {**wrong, **{index: f"{text} {problem}" for index, text in misfits.items()}}


def _converted(values: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, Reasons]:
    with np.errstate(all="ignore"):
        made = values.astype(dtype)
        if dtype.kind == "f":
            bad = np.isinf(made) & np.isfinite(values)
        else:
            # Convert there and back: a value that changed does not fit.
            bad = (made.astype(values.dtype) != values) | ((made < 0) != (values < 0))
    problem = f"is not a value of {dtype.name}"
    return made, {i: f"{values[i]!s} {problem}" for i in np.flatnonzero(bad).tolist()}


def _reject_nan(feed: InputColumns, array: np.ndarray, rows: np.ndarray, reasons: Reasons) -> None:
    if array.dtype.kind != "f":
        return
    found = np.isnan(array.reshape(len(array), -1)).any(axis=1)
    for index in np.flatnonzero(found).tolist():
        reasons.setdefault(int(rows[index]), f"input {feed.spec.name!r} has a NaN")


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype(spec.dtype.numpy_name)
