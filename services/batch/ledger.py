"""The ledger of a job whose answers are files: an SQLite database beside them.

A unit is done once its row is in the ledger, which happens after its answers are durable. The
quarantine is part of the ledger, so that a unit and its bad rows are committed together.
"""

from __future__ import annotations

import base64
import errno
import json
import resource
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import BadRow, BatchTotals, Job, JobProgress, Quarantined, UnitResult

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (kind TEXT, name TEXT, value TEXT, PRIMARY KEY (kind, name));
CREATE TABLE IF NOT EXISTS units (
    id TEXT PRIMARY KEY, origin TEXT, first INTEGER, rows INTEGER, bad INTEGER, skipped INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    name TEXT PRIMARY KEY, committed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quarantine (
    unit TEXT, row INTEGER, origin TEXT, reason TEXT, held TEXT, PRIMARY KEY (unit, row)
) WITHOUT ROWID;
"""
_FINGERPRINT, _FACT, _STATE = "fingerprint", "fact", "state"
_ID = "id"


class Ledger:
    """An open ledger. Use it from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _translated(path):
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
            # No write-ahead log: its shared memory does not work on a network volume.
            self._db.execute("PRAGMA journal_mode=DELETE")
            # FULL does not sync the folder: a power cut could then undo a commit that has returned.
            self._db.execute("PRAGMA synchronous=EXTRA")
            self._db.executescript(SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._db.close()

    def begin(self, job: Job) -> JobProgress:
        """Record a new job, or return the progress of the same one; JOB_CHANGED if it differs."""
        known = self._facts(_FINGERPRINT)
        if known:
            refuse_change(known, job.fingerprint)
        with self._transaction():
            if not known:
                self._write(_STATE, {_ID: secrets.token_hex(8)})
            self._write(_FINGERPRINT, job.fingerprint)
            self._write(_FACT, {**job.facts, **schemas_as_text(job)})
        return self.progress()

    def progress(self) -> JobProgress:
        """Return what is committed, and whether the job is complete."""
        done = frozenset(row[0] for row in self._db.execute("SELECT id FROM units"))
        return JobProgress(done, self.totals(), "finished" in self._facts(_STATE))

    def stored(self) -> Job | None:
        """Return the recorded job, or None."""
        fingerprint, facts = self._facts(_FINGERPRINT), self._facts(_FACT)
        return job_from_text(fingerprint, facts) if fingerprint else None

    def totals(self) -> BatchTotals:
        """Return the counts of committed rows; rows that left the quarantine are not bad."""
        units, rows, skipped = self._db.execute(
            "SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(skipped), 0) FROM units"
        ).fetchone()
        (bad,) = self._db.execute("SELECT count(*) FROM quarantine").fetchone()
        return BatchTotals(units, rows, bad, skipped)

    def job_id(self) -> str:
        """Return the random id of the job that began here."""
        return self._facts(_STATE)[_ID]

    def note(self, parts: Iterable[str]) -> None:
        """Note the names of parts before they are written."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO parts VALUES (?, 0)", [(name,) for name in parts]
            )

    def orphans(self) -> list[str]:
        """Return the names of parts that were noted and never committed."""
        return [row[0] for row in self._db.execute("SELECT name FROM parts WHERE NOT committed")]

    def forget(self, parts: Iterable[str]) -> None:
        """Drop the names of parts that no longer exist."""
        with self._transaction():
            self._db.executemany("DELETE FROM parts WHERE name = ?", [(name,) for name in parts])

    def clear(self) -> None:
        """Remove the job. Its parts become orphans."""
        with self._transaction():
            self._db.execute("DELETE FROM facts")
            self._db.execute("DELETE FROM units")
            self._db.execute("DELETE FROM quarantine")
            self._db.execute("UPDATE parts SET committed = 0")

    def commit(self, results: Sequence[UnitResult], parts: Iterable[str]) -> None:
        """Commit units whose answers are durable in `parts`."""
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO units VALUES (?,?,?,?,?,?)", rows(results))
            self._db.executemany(
                "INSERT OR REPLACE INTO quarantine VALUES (?,?,?,?,?)", bad_rows(results)
            )
            self._db.executemany(
                "DELETE FROM quarantine WHERE unit = ? AND row = ?",
                [key for result in results for key in result.resolved],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO parts VALUES (?, 1)", [(name,) for name in parts]
            )

    def quarantined(self) -> Iterator[Quarantined]:
        """Return a snapshot of the quarantined rows, in the order of their keys."""
        found = self._db.execute("SELECT unit, row, origin, reason, held FROM quarantine")
        return map(_quarantined, found.fetchall())

    def finish(self) -> None:
        """Mark the job as complete."""
        with self._transaction():
            self._write(_STATE, {"finished": "1"})

    def _facts(self, kind: str) -> dict[str, str]:
        return dict(self._db.execute("SELECT name, value FROM facts WHERE kind = ?", (kind,)))

    def _write(self, kind: str, facts: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO facts VALUES (?,?,?)",
            [(kind, name, value) for name, value in facts.items()],
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _translated(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def refuse_change(known: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise JOB_CHANGED with the old and new value of each name that differs."""
    changed = [name for name in {**known, **wanted} if known.get(name) != wanted.get(name)]
    if changed:
        changes = "; ".join(
            f"{name} was {known.get(name, 'not set')}, is {wanted.get(name, 'not set')}"
            for name in changed
        )
        raise MlctlError(ErrorCode.JOB_CHANGED, f"the output belongs to another job: {changes}")


def rows(results: Sequence[UnitResult]) -> list[tuple[str, str, int, int, int, int]]:
    """Return units as id, origin, first row, answers, bad and filtered rows."""
    return [
        (r.unit.id, r.unit.origin, r.unit.start, r.table.num_rows, len(r.bad), r.skipped)
        for r in results
    ]


def bad_rows(results: Sequence[UnitResult]) -> list[tuple[str, int, str, str, str]]:
    """Return the rows of the quarantine: unit, row, origin, reason, values as JSON."""
    return [
        (
            result.unit.id,
            bad.row,
            result.unit.origin,
            bad.reason,
            json.dumps(bad.values, ensure_ascii=False, allow_nan=False),
        )
        for result in results
        for bad in result.bad
    ]


def schemas_as_text(job: Job) -> dict[str, str]:
    """Serialize the job's schemas and partitions for `job_from_text`."""
    return {
        "schema": base64.b64encode(job.schema.serialize().to_pybytes()).decode(),
        "input_schema": base64.b64encode(job.input_schema.serialize().to_pybytes()).decode(),
        "partition_by": json.dumps(job.partition_by),
    }


def job_from_text(fingerprint: Mapping[str, str], facts: Mapping[str, str]) -> Job:
    """Restore a job from its fingerprint and facts, which include those of `schemas_as_text`."""
    import pyarrow as pa

    answers, read = (
        pa.ipc.read_schema(pa.BufferReader(base64.b64decode(facts[name])))
        for name in ("schema", "input_schema")
    )
    return Job(fingerprint, answers, read, facts, tuple(json.loads(facts["partition_by"])))


def _quarantined(row: tuple[str, int, str, str, str]) -> Quarantined:
    unit, number, origin, reason, held = row
    return Quarantined(unit, origin, BadRow(number, reason, json.loads(held)))


def is_out_of_space(error: sqlite3.Error) -> bool:
    """Return whether SQLite failed because the disk or the limit of a file's size is exhausted.

    SQLite has no error of its own for that limit: the write fails like any other.
    """
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return error.sqlite_errorcode == sqlite3.SQLITE_FULL or (
        limited and error.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE
    )


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise the OSError of a full disk where SQLite ran out of space."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if is_out_of_space(error):
            raise OSError(errno.ENOSPC, "no space left for the ledger", str(path)) from error
        raise
