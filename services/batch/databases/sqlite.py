"""Tables and queries of an SQLite file, by Python's own driver; lists are stored as JSON.

ADBC's driver takes a column's type from the first rows and ends at a later value of another type.
SQLite has no types of columns, so here such a value makes its row a bad one.
"""

from __future__ import annotations

import errno
import json
import resource
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases.base import (
    Database,
    column_list,
    quoted,
    text_literal,
)
from mlctl.services.batch.pieces import typed_piece
from mlctl.services.batch.units import Piece
from mlctl.services.tables.casts import Misfits, from_values
from mlctl.services.tables.values import as_json

_BATCH_ROWS = 5_000
# The first rows decide the types of columns.
_SAMPLE_ROWS = 20_000
# A transaction, or a reader, that waits longer reports that the file is locked.
_WRITE_SECONDS = 30.0
_READ_SECONDS = 5.0
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Sqlite(Database):
    """An open file; transactions take turns."""

    typed = False
    binary = "X'{}'"
    _begin = ("BEGIN IMMEDIATE",)
    _errors = (sqlite3.Error, OverflowError)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return found

    def columns(self, table: str) -> list[str] | None:
        if not self.run(f"SELECT 1 FROM sqlite_master WHERE name = {text_literal(table)}"):
            return None
        return [
            each[0]
            for each in self._connection.execute(f"SELECT * FROM {quoted(table)}").description
        ]

    def column_types(self, schema: pa.Schema) -> list[str]:
        return [_column_type(kind) for kind in schema.types]

    def load(self, table: str, rows: pa.Table) -> None:
        names = rows.schema.names
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {quoted(table)} ({column_list(names)}) VALUES ({marks})"
        for batch in rows.to_batches(_BATCH_ROWS):
            columns = [map(_plain, column.to_pylist()) for column in batch.columns]
            self._connection.executemany(statement, zip(*columns, strict=True))

    def schema(self, query: str) -> pa.Schema:
        """Return the columns; a type is that of most of the first values."""
        found = self._connection.execute(f"SELECT * FROM ({query}) LIMIT {_SAMPLE_ROWS}")
        names = [column[0] for column in found.description]
        columns = list(zip(*found.fetchall(), strict=True)) or [()] * len(names)
        return pa.schema(
            [(name, _value_type(values)) for name, values in zip(names, columns, strict=True)]
        )

    def pieces(
        self, query: str, schema: pa.Schema, rest: str, start: int, rows: int
    ) -> Iterator[Piece]:
        sql = f"SELECT {column_list(schema.names)} FROM ({query}) AS q {rest}"
        cursor = self._connection.execute(sql)
        while found := cursor.fetchmany(rows):
            yield _piece(found, schema, start)
            start += len(found)

    def _connect(self, *, read_only: bool) -> None:
        path = Path(self._url.partition("://")[2]).resolve().as_uri()
        self._connection = sqlite3.connect(
            f"{path}?mode={'ro' if read_only else 'rwc'}",
            uri=True,
            isolation_level=None,
            timeout=_READ_SECONDS if read_only else _WRITE_SECONDS,
            check_same_thread=False,
        )
        self.run("PRAGMA synchronous=FULL")

    def _roll_back(self, error: BaseException) -> None:  # noqa: ARG002
        if self._connection.in_transaction:
            self.run("ROLLBACK")

    def _translate(self, error: Any, unavailable: ErrorCode) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0)
        if is_out_of_space(code):
            return OSError(errno.ENOSPC, "no space left for the database", self._shown)
        # The low byte is the primary code.
        if code & 0xFF in _BUSY:
            return MlctlError(unavailable, f"{self._shown} stays locked: {error}")
        return self._rejected(error)


def _column_type(kind: pa.DataType) -> str:
    if types.is_integer(kind) or types.is_boolean(kind):
        return "INTEGER"
    if types.is_floating(kind):
        return "REAL"
    return "BLOB" if types.is_binary(kind) or types.is_large_binary(kind) else "TEXT"


def _value_type(values: Sequence[Any]) -> Any:
    counts = Counter(map(type, values))
    if counts[int] + counts[float] > counts[str] + counts[bytes]:
        return pa.float64() if counts[float] else pa.int64()
    return pa.binary() if counts[bytes] > counts[str] else pa.string()


def _piece(rows: Sequence[Sequence[Any]], schema: pa.Schema, start: int) -> Piece:
    """Return the rows as a table; rows with a value of another type than its column are bad."""

    def text(index: int) -> str:
        values = zip(schema.names, map(as_json, rows[index]), strict=True)
        return json.dumps(dict(values), ensure_ascii=False)

    columns = dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True))
    return typed_piece(columns, schema, range(start, start + len(rows)), _converted, text)


def _converted(field: pa.Field, values: Sequence[Any]) -> tuple[Any, Misfits]:
    return from_values(values, field.type)


def _plain(value: Any) -> Any:
    """Return a value as one of SQLite's; others as JSON."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    found = as_json(value)
    return found if isinstance(found, str) else json.dumps(found)


def is_out_of_space(code: int) -> bool:
    """Return whether SQLite failed because the disk or the limit of a file's size is exhausted.

    SQLite has no error of its own for that limit: the write fails like any other.
    """
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return code == sqlite3.SQLITE_FULL or (limited and code == sqlite3.SQLITE_IOERR_WRITE)
