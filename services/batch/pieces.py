"""Pieces of record batches, and of rows some of which are bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from services.batch.units import Piece, UnreadableRow
from services.runtime.tabular.casts import Misfits, cast
from services.runtime.tabular.values import row_text

Convert = Callable[[pa.Field, Any], tuple[Any, Misfits]]


def arrow_pieces(
    batches: Iterable[pa.RecordBatch], rows: int, schema: pa.Schema, start: int = 0
) -> Iterator[Piece]:
    """Yield record batches as pieces of at most `rows` rows, numbered from `start`.

    Columns of other types than in `schema` are cast; rows that do not fit are unreadable.
    """
    for batch in batches:
        for offset in range(0, batch.num_rows, rows):
            table = pa.Table.from_batches([batch.slice(offset, rows)])
            numbers = range(start, start + table.num_rows)
            start += table.num_rows
            if table.schema.types == schema.types:
                yield Piece(table, numbers)
            else:
                yield typed_piece(table, schema, numbers, _cast, partial(row_text, table))


def _cast(field: pa.Field, column: Any) -> tuple[Any, Misfits]:
    return cast(column, field.type, exact=True)


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
