"""Answers as rows of a table, each unit one transaction with its marker row.

The markers are in tables beside the answers. After a connection is lost during a commit, the marker
shows whether the commit happened.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.databases.base import (
    Database,
    TableRef,
    column_list,
    quoted,
    text_literal,
)
from services.batch.units import (
    DIGEST_COLUMN,
    FILE_COLUMN,
    REASON_COLUMN,
    ROW_COLUMN,
    TEXT_COLUMN,
    Job,
    Marker,
    ScoredPiece,
    Unit,
    require_same_job,
)
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa

SCORED_AT_COLUMN = "mlctl_scored_at"
_FINGERPRINT, _STATE = "fingerprint", "state"
_KEY = "key"
# Rows of a unit that are in memory at once.
_GROUP_ROWS = 200_000
_STAGE = "mlctl_stage"
# Model and microsecond: the rows that have both in common come from one unit of one job.
_MARK = (DIGEST_COLUMN, SCORED_AT_COLUMN)
# The tables beside the answers: their columns and primary keys.
_LEDGER: Mapping[str, tuple[Mapping[str, str], str]] = MappingProxyType(
    {
        "facts": ({"kind": "TEXT", "name": "TEXT", "value": "TEXT"}, "kind, name"),
        "units": (
            {
                "id": "TEXT",
                "origin": "TEXT",
                "rows": "BIGINT",
                "bad": "BIGINT",
                "skipped": "BIGINT",
            },
            "id",
        ),
        "quarantine": (
            {
                "unit": "TEXT",
                "row": "BIGINT",
                "origin": "TEXT",
                "reason": "TEXT",
                "held": "TEXT",
            },
            "unit, row",
        ),
    }
)


class DatabaseSink:
    """A sink of the table `table` in `database`. Threads commit one after the other."""

    distributed = False

    def __init__(self, database: Database, table: TableRef) -> None:
        self.forbids_nul = database.forbids_nul
        self._db = database
        self._ref = table
        self._key = table.key
        self._table = quoted(table.table)
        self._names = {name: f"{table.table}_mlctl_{name}" for name in _LEDGER}
        # The marks of the rows that this job wrote.
        self._written = f"{table.table}_mlctl_written"
        self._lock = threading.Lock()
        self._mark = 0
        self._opened = False

    def begin(self, job: Job, *, restart: bool = False) -> tuple[dict[str, Marker], bool]:
        import pyarrow as pa

        if job.partition_by:
            raise MlctlError(ErrorCode.INVALID_INPUT, "--partition-by: a table has no folders")
        schema = job.schema.append(pa.field(SCORED_AT_COLUMN, pa.timestamp("us", tz="UTC")))
        self._check_key(schema)
        wanted = {**job.fingerprint, _KEY: ",".join(self._key)}
        if not self._opened:
            self._db.open()
            self._opened = True
        with self._db.transaction():
            if restart:
                self._clear()
            self._make_ledger()
            if recorded := self._facts(_FINGERPRINT):
                require_same_job(recorded, wanted)
            else:
                self._take_table(schema)
                self._record(_FINGERPRINT, wanted)
            return self._markers(), "finished" in self._facts(_STATE)

    def find(self, unit: Unit) -> Marker | None:  # noqa: ARG002 - the table is locked by this job
        return None

    def markers(self) -> dict[str, Marker]:
        with self._lock, self._db.transaction():
            return self._markers()

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        import pyarrow as pa

        groups = _groups(pieces)
        first = next(groups, [])  # scored before the table is locked for other units
        rows, bad, skipped, reason = 0, 0, 0, ""
        with self._lock, self._db.transaction():
            if (marker := self._markers().get(unit.id)) is not None:
                return marker  # committed before the connection was lost
            # Strictly increasing, as the time tells the rows of one unit from those of another.
            self._mark = max(self._mark + 1, time.time_ns() // 1000)
            at = pa.scalar(self._mark, pa.timestamp("us", tz="UTC"))
            for group in chain([first], groups):
                held = [row for piece in group for row in _bad_rows(unit, piece.quarantine)]
                self._insert("quarantine", held)
                tables = [piece.answers for piece in group]
                table = pa.concat_tables(tables).unify_dictionaries() if tables else None
                if table is not None and table.num_rows:
                    column = pa.repeat(at, table.num_rows)
                    marked = table.append_column(SCORED_AT_COLUMN, column)
                    self._put(marked)
                    if not rows:
                        marks = marked.select(_MARK).group_by(_MARK).aggregate([])
                        self._db.load(self._written, marks)
                    rows += table.num_rows
                bad, reason = bad + len(held), held[-1][3] if held else reason
                skipped += sum(piece.skipped for piece in group)
            self._insert("units", [(unit.id, unit.origin, rows, bad, skipped)])
        return Marker(unit.id, rows, bad, skipped, (), unit.origin, reason)

    def finish(self, summary: Mapping[str, object]) -> None:
        with self._db.transaction():
            self._check_all_there()
            self._record(_STATE, {"finished": "1", "summary": json.dumps(summary)})

    def close(self) -> None:
        self._db.close()
        self._opened = False

    def _markers(self) -> dict[str, Marker]:
        rows = self._db.run(f"SELECT id, rows, bad, skipped FROM {quoted(self._names['units'])}")
        return {
            str(name): Marker(str(name), int(answers), int(bad), int(skipped))
            for name, answers, bad, skipped in rows
        }

    def _answer_count(self) -> int:
        return sum(marker.rows for marker in self._markers().values())

    def _put(self, table: pa.Table) -> None:
        """Append the rows, or replace those with the same key."""
        if not table.num_rows:
            return
        if not self._key:
            self._db.load(self._ref.table, table)
            return
        columns, key = column_list(table.schema.names), column_list(self._key)
        self._db.run(
            f"CREATE TEMPORARY TABLE {_STAGE} AS SELECT {columns} FROM {self._table} WHERE 1 = 0"
        )
        self._db.load(_STAGE, table)
        self._check_unique(key)
        rest = [name for name in table.schema.names if name not in self._key]
        insert = f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {_STAGE} WHERE 1 = 1"
        if self._db.replaces:
            news = ", ".join(
                f"{column_list([name])} = excluded.{column_list([name])}" for name in rest
            )
            self._db.run(f"{insert} ON CONFLICT ({key}) DO UPDATE SET {news}")
        else:
            self._db.run(
                f"DELETE FROM {self._table} WHERE ({key}) IN (SELECT ({key}) FROM {_STAGE})"
            )
            self._db.run(insert)
        self._db.run(f"DROP TABLE {_STAGE}")

    def _check_unique(self, key: str) -> None:
        """Reject rows with the same key."""
        twice = self._db.run(
            f"SELECT {key} FROM {_STAGE} GROUP BY {key} HAVING count(*) > 1 ORDER BY {key} LIMIT 1"
        )
        if twice:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the key {', '.join(self._key)} is not unique in the input: "
                f"{', '.join(map(str, twice[0]))} occurs twice",
                "Take a unique key, or none: each row is then added once.",
            )

    def _check_all_there(self) -> None:
        """Reject the end of a job if a repeated key replaced an answer in a later commit."""
        if not self._key or "ours" not in self._facts(_STATE):
            return
        count, answers = self._count_written(), self._answer_count()
        if count < answers:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._ref.shown} has {count} rows of the job after {answers} answers: "
                f"the key {', '.join(self._key)} is not unique in the input, "
                "or other programs removed or changed rows",
                "Take a unique key, or none, and start again with --restart.",
            )

    def _check_key(self, schema: pa.Schema) -> None:
        if missing := [name for name in self._key if name not in schema.names]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"key: the answers have no column {missing[0]!r}",
                "Keep it: add it to --keep.",
            )

    def _take_table(self, schema: pa.Schema) -> None:
        """Create the table or check its columns; record whether it was empty."""
        columns = self._db.columns(self._ref.table)
        if columns is None:
            self._create(schema)
            columns = list(schema.names)
        if missing := [name for name in schema.names if name not in columns]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._ref.shown} has no column {missing[0]!r}"
            )
        marks = column_list(_MARK)
        written = quoted(self._written)
        self._db.run(f"CREATE TABLE {written} AS SELECT {marks} FROM {self._table} LIMIT 0")
        empty = not self._db.run(f"SELECT 1 FROM {self._table} LIMIT 1")
        self._record(_STATE, {"ours": "1"} if empty else {})

    def _create(self, schema: pa.Schema) -> None:
        types = self._db.column_types(schema)
        fields = [
            f"{column_list([name])} {kind}" for name, kind in zip(schema.names, types, strict=True)
        ]
        if self._key and self._db.replaces:
            fields.append(f"PRIMARY KEY ({column_list(self._key)})")
        statement = f"CREATE TABLE {self._table} ({', '.join(fields)})"
        if not self._ref.create:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._ref.shown} does not exist",
                f"Add --option create=yes, or make it: {statement}",
            )
        self._db.run(statement)

    def _clear(self) -> None:
        """Remove the previous job and the rows that it wrote; fail if those are not certain."""
        if self._db.columns(self._names["facts"]) is None:
            return
        if fingerprint := self._facts(_FINGERPRINT):
            if fingerprint[_KEY] and "ours" not in self._facts(_STATE):
                raise self._not_cleared("had rows before the job, which may have replaced some")
            count, answers = self._count_written(), self._answer_count()
            if count != answers and not fingerprint[_KEY]:
                raise self._not_cleared(f"has {count} rows of the job, which wrote {answers}")
            self._db.run(f"DELETE FROM {self._table} WHERE {self._is_written}")
            self._db.run(f"DROP TABLE {quoted(self._written)}")
        for name in self._names.values():
            self._db.run(f"DELETE FROM {quoted(name)}")

    @property
    def _is_written(self) -> str:
        """The condition for the rows that this job wrote."""
        marks = column_list(_MARK)
        return f"({marks}) IN (SELECT {marks} FROM {quoted(self._written)})"

    def _count_written(self) -> int:
        ((count,),) = self._db.run(f"SELECT count(*) FROM {self._table} WHERE {self._is_written}")
        return int(count)

    def _not_cleared(self, why: str) -> MlctlError:
        tables = ", ".join((*self._names.values(), self._written))
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{self._ref.shown} {why}: no row is removed",
            f"Delete the job's rows yourself, and drop the tables {tables}.",
        )

    def _make_ledger(self) -> None:
        for name, (columns, key) in _LEDGER.items():
            fields = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            self._db.run(
                f"CREATE TABLE IF NOT EXISTS {quoted(self._names[name])} "
                f"({fields}, PRIMARY KEY ({key}))"
            )

    def _facts(self, kind: str) -> dict[str, str]:
        found = self._db.run(
            f"SELECT name, value FROM {quoted(self._names['facts'])} "
            f"WHERE kind = {text_literal(kind)}"
        )
        return {str(name): str(value) for name, value in found}

    def _record(self, kind: str, facts: Mapping[str, str]) -> None:
        """Store facts of one kind; those of the same name are replaced."""
        for name in facts:
            self._db.run(
                f"DELETE FROM {quoted(self._names['facts'])} "
                f"WHERE kind = {text_literal(kind)} AND name = {text_literal(name)}"
            )
        self._insert("facts", [(kind, name, value) for name, value in facts.items()])

    def _insert(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows to a table of the ledger."""
        import pyarrow as pa

        if not rows:
            return
        columns = _LEDGER[name][0]
        kinds = {"TEXT": pa.string(), "BIGINT": pa.int64()}
        schema = pa.schema([(column, kinds[kind]) for column, kind in columns.items()])
        values = [list(each) for each in zip(*rows, strict=True)]
        self._db.load(self._names[name], pa.table(values, schema=schema))


def _groups(pieces: Iterable[ScoredPiece]) -> Iterator[list[ScoredPiece]]:
    """Yield the pieces in groups of at least `_GROUP_ROWS` rows, so that memory is bounded."""
    group, rows = list[ScoredPiece](), 0
    for piece in pieces:
        group.append(piece)
        rows += piece.answers.num_rows
        if rows >= _GROUP_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _bad_rows(unit: Unit, table: pa.Table | None) -> Iterator[tuple[str, int, str, str, str]]:
    """Yield unit, row, origin, reason and the values as JSON, or the text of an unreadable row."""
    own = {FILE_COLUMN, ROW_COLUMN, REASON_COLUMN, TEXT_COLUMN}
    for row in [] if table is None else table.to_pylist():
        values = {name: as_json(value) for name, value in row.items() if name not in own}
        text = row[TEXT_COLUMN] or json.dumps(values, ensure_ascii=False)
        reason = str(row[REASON_COLUMN]).replace("\0", "")
        yield unit.id, row[ROW_COLUMN], unit.origin, reason, text.replace("\0", "")
