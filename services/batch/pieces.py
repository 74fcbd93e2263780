"""Pieces of record batches, and of rows some of which are bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from services.batch.units import Piece, UnreadableRow

# What Arrow raises for a value that is not one of a type.
_MISFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


def arrow_pieces(batches: Iterable[pa.RecordBatch], rows: int, start: int = 0) -> Iterator[Piece]:
    """Yield record batches as pieces of at most `rows` rows, numbered from `start`."""
    for batch in batches:
        for offset in range(0, batch.num_rows, rows):
            part = batch.slice(offset, rows)
            yield Piece(pa.Table.from_batches([part]), range(start, start + part.num_rows))
            start += part.num_rows


def typed_piece(
    columns: Mapping[str, Any],
    schema: pa.Schema,
    numbers: Sequence[int] | np.ndarray,
    convert: Callable[[Any, pa.DataType], Any],
    text: Callable[[int], str],
    unreadable: tuple[UnreadableRow, ...] = (),
) -> Piece:
    """Return a piece of `columns` in the types of `schema`; rows that do not fit are unreadable.

    `convert` converts a column to a type or raises: then each value is converted alone. `text`
    returns the content of the row at an index; `unreadable` are rows that are not in the columns.
    """
    problems: dict[int, str] = {}
    arrays = []
    for field in schema:
        values = columns[field.name]
        try:
            arrays.append(convert(values, field.type))
        except _MISFIT:
            fitting = []
            for index in range(len(values)):
                try:
                    fitting.append(convert(values[index : index + 1], field.type)[0].as_py())
                except _MISFIT:
                    fitting.append(None)
                    problems.setdefault(index, f"column {field.name!r} is not {field.type}")
            arrays.append(pa.array(fitting, field.type))
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
