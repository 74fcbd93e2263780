"""Tables in a file of SQLite; lists are stored as JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.databases.base import TableRef, column_list, quoted
from services.batch.databases.sink import DatabaseSink
from services.batch.locks import lock_job
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 5_000
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def open_sqlite(location: str, options: Mapping[str, str]) -> DatabaseSink:
    """The table in a file: sqlite://PATH?table=NAME."""
    place = TableRef.parse(location, options)
    return DatabaseSink(Sqlite(place), place)


class Sqlite:
    """An open file. Use it from one thread at a time."""

    replaces = True
    forbids_nul = False

    def __init__(self, place: TableRef) -> None:
        self._place = place
        self._path = place.url.partition("://")[2]
        self._stack = contextlib.ExitStack()
        self._db: Any = None

    def open(self) -> None:
        try:
            lock = lock_job(Path(f"{self._path}-mlctl-lock"), self._place.shown)
        except OSError as error:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._path} cannot be opened: {error.strerror}"
            ) from error
        self._stack.callback(os.close, lock)
        with self._translated():
            self._db = sqlite3.connect(
                self._path, isolation_level=None, timeout=30, check_same_thread=False
            )
            self._stack.callback(self._db.close)
            self._db.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._db.execute(sql, tuple(parameters)).fetchall()
        return found

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._db.executemany(sql, rows)

    def columns(self, table: str) -> list[str] | None:
        found = self.run("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        if not found:
            return None
        return [each[0] for each in self._db.execute(f"SELECT * FROM {quoted(table)}").description]

    def column_type(self, kind: pa.DataType) -> str:
        from pyarrow import types

        if types.is_integer(kind) or types.is_boolean(kind):
            return "INTEGER"
        if types.is_floating(kind):
            return "REAL"
        return "BLOB" if types.is_binary(kind) or types.is_large_binary(kind) else "TEXT"

    def load(self, table: str, rows: pa.Table) -> None:
        names = rows.schema.names
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {table} ({column_list(names)}) VALUES ({marks})"
        for batch in rows.to_batches(_BATCH_ROWS):
            columns = [map(_plain, column.to_pylist()) for column in batch.columns]
            self._db.executemany(statement, zip(*columns, strict=True))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if is_out_of_space(error):
                place = self._place.shown
                raise OSError(errno.ENOSPC, "no space left for the database", place) from error
            busy = error.sqlite_errorcode in _BUSY
            code = ErrorCode.SINK_UNAVAILABLE if busy else ErrorCode.INVALID_INPUT
            raise MlctlError(code, f"{self._place.shown} rejects the statement: {error}") from error
        except (sqlite3.DatabaseError, OverflowError) as error:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._place.shown} rejects the statement: {error}"
            ) from error


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    found = as_json(value)
    return found if isinstance(found, str) else json.dumps(found)


def is_out_of_space(error: sqlite3.Error) -> bool:
    """Return whether SQLite failed because the disk or the limit of a file's size is exhausted.

    SQLite has no error of its own for that limit: the write fails like any other.
    """
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return error.sqlite_errorcode == sqlite3.SQLITE_FULL or (
        limited and error.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE
    )
