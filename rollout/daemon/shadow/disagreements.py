"""A bounded sample of the rows that two revisions answered differently, for a person to read."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlctl.bundle.sampling import AT, INPUT_PREFIX, OUTPUT_PREFIX, REQUEST_ID, ROW
from mlctl.rollout.daemon.segments import read
from mlctl.rollout.domain.shadow.join import AnswerSide, Pair

_LOG = logging.getLogger(__name__)
MAX_ROWS = 500
MAX_BYTES = 32 << 20
_KEY = (REQUEST_ID, ROW, AT)


class Disagreements:
    """One Parquet file: request_id, row, at, in.NAME, live.NAME and candidate.NAME.

    The first ones are kept. It is written again when rows are added, and continued after a
    restart of the daemon. pyarrow is imported with the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table: Any = None
        self._full = False

    def add(self, pairs: Iterable[Pair]) -> None:
        """Keep these pairs as well, as far as there is room; their segments must still exist.

        What cannot be written is logged and ends the sample: the verdict does not need it.
        """
        import pyarrow as pa

        if self._full:
            return
        try:
            self._add(pairs)
        except (OSError, pa.ArrowException) as error:
            _LOG.warning("no more disagreements are kept in %s: %s", self.path, error)
            self._full = True

    def _add(self, pairs: Iterable[Pair]) -> None:
        import pyarrow as pa

        tables: dict[Path, Any] = {}
        found = [row for pair in pairs if (row := _row(pair, tables)) is not None]
        if not found:
            return
        if self._table is None and self.path.exists():
            self._table = read(self.path, ("",))
        before = [] if self._table is None else [self._table]
        table = pa.concat_tables([*before, *found], promote_options="permissive")
        self._table = table.slice(0, MAX_ROWS)
        self._full = len(table) >= MAX_ROWS or table.nbytes >= MAX_BYTES
        self._write()

    def _write(self) -> None:
        import pyarrow.parquet as pq

        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".writing")
        pq.write_table(self._table, temporary)
        temporary.replace(self.path)


def _row(pair: Pair, tables: dict[Path, Any]) -> Any | None:
    """A table of one row; None if a segment is gone."""
    for recorded in (pair.live, pair.candidate):
        if recorded.segment not in tables:
            tables[recorded.segment] = read(recorded.segment, (*_KEY, INPUT_PREFIX, OUTPUT_PREFIX))
    live, candidate = tables[pair.live.segment], tables[pair.candidate.segment]
    if live is None or candidate is None:
        return None
    row = _renamed(live.slice(pair.live.index, 1), AnswerSide.LIVE)
    other = _renamed(candidate.slice(pair.candidate.index, 1), AnswerSide.CANDIDATE)
    for name in other.column_names:
        if name.startswith(f"{AnswerSide.CANDIDATE}."):
            row = row.append_column(name, other.column(name))
    return row


def _renamed(table: Any, side: AnswerSide) -> Any:
    names = [
        f"{side}.{name.removeprefix(OUTPUT_PREFIX)}" if name.startswith(OUTPUT_PREFIX) else name
        for name in table.column_names
    ]
    return table.rename_columns(names)
