"""Answers as rows of a table, with the ledger in tables beside it.

A commit is one transaction: the answers, the bad rows and the ledger's rows of its units. After
a connection that was lost during a commit, the ledger tells whether the commit happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import (
    DIGEST_COLUMN,
    SCORED_AT_COLUMN,
    BadRow,
    BatchTotals,
    Job,
    JobProgress,
    Quarantined,
    UnitResult,
)
from services.batch.databases.base import Database, TableRef, column_list, quoted
from services.batch.ledger import bad_rows, job_from_text, refuse_change, rows, schemas_as_text

if TYPE_CHECKING:
    import pyarrow as pa

_FINGERPRINT, _FACT, _STATE = "fingerprint", "fact", "state"
_KEY = "key"
_STAGE = '"mlctl_stage"'
# Model and microsecond: the rows that have both in common come from one unit of one job.
_MARK = (DIGEST_COLUMN, SCORED_AT_COLUMN)
_IDS_AT_ONCE = 1_000
_LEDGER = {
    "facts": "kind TEXT, name TEXT, value TEXT, PRIMARY KEY (kind, name)",
    "units": "id TEXT PRIMARY KEY, origin TEXT, first BIGINT, rows BIGINT, bad BIGINT, "
    "skipped BIGINT",
    "quarantine": "unit TEXT, row BIGINT, origin TEXT, reason TEXT, held TEXT, "
    "PRIMARY KEY (unit, row)",
}


class DatabaseSink:
    """A sink of the table at `place` in `database`."""

    def __init__(self, database: Database, place: TableRef, commit_rows: int = 50_000) -> None:
        self.commit_rows = commit_rows
        self.forbids_nul = database.forbids_nul
        self._db = database
        self._place = place
        self._key = place.key
        self._table = quoted(place.table)
        self._names = {name: quoted(f"{place.table}_mlctl_{name}") for name in _LEDGER}
        # The marks of the rows that this job wrote.
        self._written = quoted(f"{place.table}_mlctl_written")

    def __enter__(self) -> Self:
        self._db.open()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._db.close()

    def begin(self, job: Job, *, restart: bool = False) -> JobProgress:
        if job.partition_by:
            raise MlctlError(ErrorCode.INVALID_INPUT, "--partition-by: a table has no folders")
        self._check_key(job.schema)
        wanted = {**job.fingerprint, _KEY: ",".join(self._key)}
        with self._db.transaction():
            if restart:
                self._clear()
            self._make_ledger()
            known = self._facts(_FINGERPRINT)
            if known:
                refuse_change(known, wanted)
            else:
                self._take_table(job.schema)
            self._write(_FINGERPRINT, wanted)
            self._write(_FACT, {**job.facts, **schemas_as_text(job)})
            return self._progress()

    def commit(self, results: Sequence[UnitResult]) -> None:
        import pyarrow as pa

        with self._db.transaction():
            # Known units were committed before the connection was lost.
            known = self._known([result.unit.id for result in results])
            results = [result for result in results if result.unit.id not in known]
            if not results:
                return
            self._db.run_many(
                f"INSERT INTO {self._names['units']} VALUES (?,?,?,?,?,?)", rows(results)
            )
            self._db.run_many(
                f"INSERT INTO {self._names['quarantine']} VALUES (?,?,?,?,?)",
                [
                    (*key, reason.replace("\0", ""), held)
                    for *key, reason, held in bad_rows(results)
                ],
            )
            self._db.run_many(
                f"DELETE FROM {self._names['quarantine']} WHERE unit = ? AND row = ?",
                [key for result in results for key in result.resolved],
            )
            table = pa.concat_tables([result.table for result in results]).unify_dictionaries()
            self._put(table)
            self._db.load(self._written, table.select(_MARK).group_by(_MARK).aggregate([]))

    def finish(self, summary: Mapping[str, object]) -> None:
        with self._db.transaction():
            self._check_all_there()
            self._write(_STATE, {"finished": "1", "summary": json.dumps(summary)})

    def require_job(self) -> None:
        if not self._db.may_have(self._facts_table):
            raise self._no_job()

    def stored(self) -> tuple[Job, JobProgress]:
        with self._db.transaction():
            columns = self._db.columns(self._facts_table)
            fingerprint = self._facts(_FINGERPRINT) if columns else {}
            if not fingerprint:
                raise self._no_job()
            self._key = tuple(filter(None, fingerprint.pop(_KEY).split(",")))
            return job_from_text(fingerprint, self._facts(_FACT)), self._progress()

    def quarantined(self) -> Iterator[Quarantined]:
        with self._db.transaction():
            found = self._db.run(
                f"SELECT unit, row, origin, reason, held FROM {self._names['quarantine']}"
            )
        for unit, row, origin, reason, held in sorted(found):
            yield Quarantined(unit, origin, BadRow(row, reason, json.loads(held)))

    @property
    def _facts_table(self) -> str:
        return f"{self._place.table}_mlctl_facts"

    def _no_job(self) -> MlctlError:
        return MlctlError(ErrorCode.NOT_FOUND, f"{self._place.shown} holds no batch job's answers")

    def _put(self, table: pa.Table) -> None:
        """Append the rows, or replace those with the same key."""
        if not table.num_rows:
            return
        if not self._key:
            self._db.load(self._table, table)
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
        """Refuse a commit in which two rows have the same key."""
        twice = self._db.run(
            f"SELECT {key} FROM {_STAGE} GROUP BY {key} HAVING count(*) > 1 ORDER BY {key} LIMIT 1"
        )
        if twice:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the key {', '.join(self._key)} is not unique in the input: "
                f"{', '.join(map(str, twice[0]))} comes twice",
                "Take a unique key, or none: each row is then added once.",
            )

    def _check_all_there(self) -> None:
        """Refuse to finish if a key that came again in a later commit replaced an answer."""
        if not self._key or "ours" not in self._facts(_STATE):
            return
        count, answers = self._count_written(), self._progress().totals.rows
        if count < answers:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._place.shown} has {count} rows of the job after {answers} answers: "
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
        columns = self._db.columns(self._place.table)
        if columns is None:
            self._create(schema)
            columns = list(schema.names)
        if missing := [name for name in schema.names if name not in columns]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._place.shown} has no column {missing[0]!r}"
            )
        marks = column_list(_MARK)
        self._db.run(f"CREATE TABLE {self._written} AS SELECT {marks} FROM {self._table} LIMIT 0")
        empty = not self._db.run(f"SELECT 1 FROM {self._table} LIMIT 1")
        self._write(_STATE, {"ours": "1"} if empty else {})

    def _create(self, schema: pa.Schema) -> None:
        fields = [f"{column_list([f.name])} {self._db.column_type(f.type)}" for f in schema]
        if self._key and self._db.replaces:
            fields.append(f"PRIMARY KEY ({column_list(self._key)})")
        statement = f"CREATE TABLE {self._table} ({', '.join(fields)})"
        if not self._place.create:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._place.shown} does not exist",
                f"Add --option create=yes, or make it: {statement}",
            )
        self._db.run(statement)

    def _clear(self) -> None:
        """Remove the previous job and the rows that it wrote, or refuse if those are not known."""
        if self._db.columns(self._facts_table) is None:
            return
        if fingerprint := self._facts(_FINGERPRINT):
            if fingerprint[_KEY] and "ours" not in self._facts(_STATE):
                raise self._not_cleared("had rows before the job, which may have replaced some")
            count, answers = self._count_written(), self._progress().totals.rows
            if count != answers and not fingerprint[_KEY]:
                raise self._not_cleared(f"has {count} rows of the job, which wrote {answers}")
            self._db.run(f"DELETE FROM {self._table} WHERE {self._is_written}")
            self._db.run(f"DROP TABLE {self._written}")
        for name in self._names.values():
            self._db.run(f"DELETE FROM {name}")

    @property
    def _is_written(self) -> str:
        """The condition for the rows that this job wrote."""
        marks = column_list(_MARK)
        return f"({marks}) IN (SELECT {marks} FROM {self._written})"

    def _count_written(self) -> int:
        ((count,),) = self._db.run(f"SELECT count(*) FROM {self._table} WHERE {self._is_written}")
        return int(count)

    def _not_cleared(self, why: str) -> MlctlError:
        tables = ", ".join((*self._names.values(), self._written))
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{self._place.shown} {why}: no row is removed",
            f"Delete the job's rows yourself, and drop the tables {tables}.",
        )

    def _make_ledger(self) -> None:
        for name, columns in _LEDGER.items():
            self._db.run(f"CREATE TABLE IF NOT EXISTS {self._names[name]} ({columns})")

    def _known(self, ids: Sequence[str]) -> set[str]:
        found = set[str]()
        for start in range(0, len(ids), _IDS_AT_ONCE):  # databases limit the parameters
            some = ids[start : start + _IDS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            sql = f"SELECT id FROM {self._names['units']} WHERE id IN ({marks})"
            found.update(row[0] for row in self._db.run(sql, some))
        return found

    def _progress(self) -> JobProgress:
        units, quarantine = self._names["units"], self._names["quarantine"]
        done = frozenset(row[0] for row in self._db.run(f"SELECT id FROM {units}"))
        ((count, answers, skipped),) = self._db.run(
            f"SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(skipped), 0) FROM {units}"
        )
        ((bad,),) = self._db.run(f"SELECT count(*) FROM {quarantine}")
        totals = BatchTotals(int(count), int(answers), int(bad), int(skipped))
        return JobProgress(done, totals, "finished" in self._facts(_STATE))

    def _facts(self, kind: str) -> dict[str, str]:
        found = self._db.run(
            f"SELECT name, value FROM {self._names['facts']} WHERE kind = ?", (kind,)
        )
        return {str(name): str(value) for name, value in found}

    def _write(self, kind: str, facts: Mapping[str, str]) -> None:
        self._db.run_many(
            f"INSERT INTO {self._names['facts']} VALUES (?,?,?) "
            "ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value",
            [(kind, name, value) for name, value in facts.items()],
        )
