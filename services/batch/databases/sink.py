"""Answers as rows of a table, each unit one transaction with its marker row.

Three tables beside the answers have the job, its markers and its quarantine. The marker shows
whether a unit was committed by another run, or before the connection was lost. The column
`mlctl_unit` of the answers begins with a random mark of the job, by which `--restart` finds the
job's rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases.base import (
    Database,
    TableRef,
    column_list,
    quoted,
    text_literal,
)
from mlctl.services.batch.databases.upsert import upsert
from mlctl.services.batch.units import (
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
from mlctl.services.tables.values import as_json

UNIT_COLUMN = "mlctl_unit"
_FINGERPRINT, _MARK, _SUMMARY = "fingerprint", "mark", "summary"
# Rows of a unit that are in memory at once.
_GROUP_ROWS = 200_000
# The tables beside the answers.
_LEDGER: Mapping[str, str] = MappingProxyType(
    {
        "job": "name TEXT, value TEXT, PRIMARY KEY (name)",
        "units": (
            "id TEXT, origin TEXT, rows BIGINT, bad BIGINT, skipped BIGINT, PRIMARY KEY (id)"
        ),
        "quarantine": (
            "unit TEXT, row BIGINT, origin TEXT, reason TEXT, content TEXT, PRIMARY KEY (unit, row)"
        ),
    }
)


class DatabaseSink:
    """A sink of one table in `database`. Threads, and runs, commit one after the other."""

    waits = True

    def __init__(self, database: Database, table: TableRef) -> None:
        self.forbids_nul = database.forbids_nul
        self._db = database
        self._ref = table
        self._key = table.key
        self._table = quoted(table.table)
        self._names = {name: f"{table.table}_mlctl_{name}" for name in _LEDGER}
        self._lock = threading.Lock()
        self._mark = ""
        self._opened = False

    def begin(self, job: Job, *, restart: bool = False) -> tuple[dict[str, Marker], bool]:
        if job.partition_by:
            raise MlctlError(ErrorCode.INVALID_INPUT, "--partition-by: a table has no folders")
        schema = job.schema.append(pa.field(UNIT_COLUMN, pa.string()))
        if missing := [name for name in self._key if name not in schema.names]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"key: the answers have no column {missing[0]!r}",
                "Keep it: add it to --keep.",
            )
        fingerprint = {**job.fingerprint, "key": ",".join(self._key)}
        if not self._opened:
            self._db.open()
            self._opened = True
        with self._db.transaction():
            self._make_ledger()
            facts = self._facts()
            if facts and restart:
                self._clear(facts[_MARK])
                facts = {}
            if facts:
                require_same_job(json.loads(facts[_FINGERPRINT]), fingerprint)
            else:
                self._prepare_table(schema)
                facts = {_FINGERPRINT: json.dumps(fingerprint), _MARK: uuid4().hex[:12]}
                self._insert_facts(facts)
            self._mark = facts[_MARK]
            return self._markers(), _SUMMARY in facts

    def find(self, unit: Unit) -> Marker | None:  # noqa: ARG002 - `commit` finds it
        return None

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        groups = _groups(pieces)
        first = next(groups, [])  # scored before the table is locked for other units
        marker = Marker(unit.id, origin=unit.origin)
        with self._lock, self._db.transaction():
            self._require_own()
            if found := self._markers(f"WHERE id = {text_literal(unit.id)}").get(unit.id):
                return found  # of another run, or committed before the connection was lost
            for group in chain([first], groups):
                for piece in group:
                    self._insert("quarantine", list(_bad_rows(unit, piece.quarantine)))
                    marker += piece
                answers = [piece.answers for piece in group if piece.answers.num_rows]
                if answers:
                    table = pa.concat_tables(answers).unify_dictionaries()
                    mark = pa.repeat(f"{self._mark}-{unit.id}", table.num_rows)
                    self._put(table.append_column(UNIT_COLUMN, mark))
            counts = {"rows": marker.rows, "bad": marker.bad, "skipped": marker.skipped}
            self._insert("units", [{"id": unit.id, "origin": unit.origin, **counts}])
        return marker

    def finish(self, summary: Mapping[str, object]) -> None:
        with self._db.transaction():
            self._require_own()
            if self._key:
                self._check_complete()
            job = quoted(self._names["job"])
            self._db.run(f"DELETE FROM {job} WHERE name = {text_literal(_SUMMARY)}")
            self._insert_facts({_SUMMARY: json.dumps(summary)})

    def close(self) -> None:
        self._db.close()
        self._opened = False

    def _markers(self, where: str = "") -> dict[str, Marker]:
        units = quoted(self._names["units"])
        rows = self._db.run(f"SELECT id, rows, bad, skipped FROM {units} {where}")
        return {
            str(name): Marker(str(name), int(answers), int(bad), int(skipped))
            for name, answers, bad, skipped in rows
        }

    def _require_own(self) -> None:
        """Raise JOB_CHANGED if another run has begun another job, or this one again."""
        if self._facts().get(_MARK) != self._mark:
            raise MlctlError(
                ErrorCode.JOB_CHANGED, f"another run has begun a job in {self._ref.shown}"
            )

    def _put(self, table: pa.Table) -> None:
        """Append the rows, or replace those with the same key."""
        if self._key:
            upsert(self._db, self._ref.table, self._key, table)
        else:
            self._db.load(self._ref.table, table)

    def _check_complete(self) -> None:
        """Reject the end of a job if a repeated key replaced an answer in a later commit."""
        count = self._db.run(f"SELECT count(*) FROM {self._table} WHERE {_written(self._mark)}")
        found, answers = int(count[0][0]), sum(each.rows for each in self._markers().values())
        if found < answers:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._ref.shown} has {found} rows of the job after {answers} answers: "
                f"the key {', '.join(self._key)} is not unique in the input, "
                "or other programs removed or changed rows",
                "Take a unique key, or none, and start again with --restart.",
            )

    def _prepare_table(self, schema: pa.Schema) -> None:
        """Create the table, or check its columns."""
        columns = self._db.columns(self._ref.table)
        if columns is None:
            self._create(schema)
        elif missing := [name for name in schema.names if name not in columns]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._ref.shown} has no column {missing[0]!r}"
            )

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

    def _clear(self, mark: str) -> None:
        """Delete the rows that the recorded job wrote, and its record."""
        if self._db.columns(self._ref.table) is not None:
            self._db.run(f"DELETE FROM {self._table} WHERE {_written(mark)}")
        for name in self._names.values():
            self._db.run(f"DELETE FROM {quoted(name)}")

    def _make_ledger(self) -> None:
        for name, columns in _LEDGER.items():
            self._db.run(f"CREATE TABLE IF NOT EXISTS {quoted(self._names[name])} ({columns})")

    def _facts(self) -> dict[str, str]:
        found = self._db.run(f"SELECT name, value FROM {quoted(self._names['job'])}")
        return {str(name): str(value) for name, value in found}

    def _insert_facts(self, facts: Mapping[str, str]) -> None:
        self._insert("job", [{"name": name, "value": value} for name, value in facts.items()])

    def _insert(self, name: str, rows: Sequence[Mapping[str, str | int]]) -> None:
        """Append rows to a table of the ledger."""
        if rows:
            self._db.load(self._names[name], pa.Table.from_pylist(rows))


def _written(mark: str) -> str:
    """Return the condition for the rows that the job with that mark wrote."""
    return f"{UNIT_COLUMN} LIKE '{mark}-%'"


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


def _bad_rows(unit: Unit, table: pa.Table | None) -> Iterator[dict[str, Any]]:
    """Yield rows of the quarantine: their values as JSON, or the text of an unreadable row."""
    own = {FILE_COLUMN, ROW_COLUMN, REASON_COLUMN, TEXT_COLUMN}
    for row in [] if table is None else table.to_pylist():
        values = {name: as_json(value) for name, value in row.items() if name not in own}
        text = row[TEXT_COLUMN] or json.dumps(values, ensure_ascii=False)
        yield {
            "unit": unit.id,
            "row": row[ROW_COLUMN],
            "origin": unit.origin,
            "reason": str(row[REASON_COLUMN]).replace("\0", ""),
            "content": text.replace("\0", ""),
        }
