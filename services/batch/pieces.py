"""Pieces of record batches, and of rows some of which are bad."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from mlctl.services.batch.units import Piece, UnreadableRow
from mlctl.services.tables.casts import Misfits, cast
from mlctl.services.tables.values import row_text

Convert = Callable[[pa.Field, Any], tuple[Any, Misfits]]


def arrow_pieces(
    batches: Iterable[pa.RecordBatch],
    rows: int,
    schema: pa.Schema,
    inputs: Container[str] = (),
    start: int = 0,
) -> Iterator[Piece]:
    """Yield record batches as pieces of at most `rows` rows, numbered from `start`.

    Columns of other types than in `schema` are cast, those of `inputs` to the nearest float. Rows
    that do not fit, or have text that is no UTF-8, are unreadable.
    """

    def convert(field: pa.Field, column: Any) -> tuple[Any, Misfits]:
        if not _is_valid(column):
            column = column.cast(pa.large_binary())
        return cast(column, field.type, exact=field.name not in inputs)

    for batch in batches:
        for offset in range(0, batch.num_rows, rows):
            table = pa.Table.from_batches([batch.slice(offset, rows)])
            numbers = range(start, start + table.num_rows)
            start += table.num_rows
            if table.schema.types == schema.types and all(map(_is_valid, table.columns)):
                yield Piece(table, numbers)
            else:
                yield typed_piece(table, schema, numbers, convert, partial(row_text, table))


def _is_valid(column: Any) -> bool:
    """Return whether text is UTF-8, which files only claim; other columns are."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def typed_piece(
    columns: Mapping[str, Any],
    schema: pa.Schema,
    numbers: Sequence[int] | np.ndarray,
    convert: Convert,
    text: Callable[[int], str],
    unreadable: tuple[UnreadableRow, ...] = (),
) -> Piece:
    """Return a piece of `columns` in the types of `schema`; rows that do not fit are unreadable.

    `convert` converts a column, and returns what does not fit as well. `text` returns the content
    of the row at an index; `unreadable` are rows that are not in the columns.
    """
    problems: dict[int, str] = {}
    arrays = []
    for field in schema:
        array, misfits = convert(field, columns[field.name])
        arrays.append(array)
        for index in misfits:
            problems.setdefault(index, f"column {field.name!r} is not {field.type}")
    table = pa.table(arrays, schema=schema)
    if not problems:
        return Piece(table, numbers, unreadable)
    indices = np.delete(np.arange(table.num_rows), list(problems))
    bad = (UnreadableRow(int(numbers[index]), why, text(index)) for index, why in problems.items())
    return Piece(
        table.take(indices),
        np.asarray(numbers)[indices],
        tuple(sorted((*unreadable, *bad), key=lambda each: each.row)),
    )
