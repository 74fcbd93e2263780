"""Pieces of record batches, and of rows some of which are bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from services.batch.units import Piece, UnreadableRow


def arrow_pieces(batches: Iterable[pa.RecordBatch], rows: int, start: int = 0) -> Iterator[Piece]:
    """Yield record batches as pieces of at most `rows` rows, numbered from `start`."""
    for batch in batches:
        for offset in range(0, batch.num_rows, rows):
            part = batch.slice(offset, rows)
            yield Piece(pa.Table.from_batches([part]), range(start, start + part.num_rows))
            start += part.num_rows


def piece_without(
    table: pa.Table,
    numbers: Sequence[int] | np.ndarray,
    problems: Mapping[int, str],
    text: Callable[[int], str],
    unreadable: tuple[UnreadableRow, ...] = (),
) -> Piece:
    """Return the piece of `table` without the rows that have a problem, which are unreadable.

    `text` returns the content of the row at an index of the table; `unreadable` are rows that are
    not in the table.
    """
    if not problems:
        return Piece(table, numbers, unreadable)
    indices = np.delete(np.arange(table.num_rows), list(problems))
    bad = (UnreadableRow(int(numbers[index]), why, text(index)) for index, why in problems.items())
    return Piece(
        table.take(indices),
        np.asarray(numbers)[indices],
        tuple(sorted((*unreadable, *bad), key=lambda each: each.row)),
    )
