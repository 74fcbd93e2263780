"""Tables and queries of a DuckDB file, which reads and returns Arrow columns."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from bundle.errors import ErrorCode, MlctlError
from bundle.files import NO_SPACE
from services.batch.databases.base import (
    QueryReader,
    TableRef,
    column_list,
    quoted,
    text_literal,
)
from services.batch.pieces import arrow_pieces
from services.batch.units import Piece

_ROWS = "mlctl_rows"
_FULL = tuple(map(os.strerror, NO_SPACE))


class DuckDb:
    """An open file, which DuckDB locks."""

    # No index: within a transaction, its unique indexes reject keys that were just deleted.
    replaces = False
    forbids_nul = False

    def __init__(self, table: TableRef) -> None:
        import duckdb

        self._driver = duckdb
        self._table = table
        self._path = table.url.partition("://")[2]
        self._db: Any = None

    def open(self) -> None:
        try:
            self._db = self._driver.connect(self._path)
        except self._driver.IOException as error:
            locked = "lock" in str(error)
            raise MlctlError(
                ErrorCode.JOB_RUNNING if locked else ErrorCode.INVALID_INPUT,
                f"another process writes to {self._table.shown}"
                if locked
                else f"{self._table.shown} cannot be opened",
            ) from error

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._db is None:
            self.open()
        try:
            self._db.execute("BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except self._driver.Error as error:
            if any(text in str(error) for text in _FULL):
                # After a failed write DuckDB rejects all statements until it is opened again.
                self.close()
                raise OSError(errno.ENOSPC, "no space left for the database") from error
            if isinstance(error, self._driver.IOException):
                self.close()
                raise MlctlError(
                    ErrorCode.SINK_UNAVAILABLE, f"{self._table.shown} cannot be written: {error}"
                ) from error
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._table.shown} rejects the statement: {error}"
            ) from error

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._db.execute(sql).fetchall()
        return found

    def columns(self, table: str) -> list[str] | None:
        schema, _, name = table.rpartition(".")
        found = self.run(
            f"SELECT column_name FROM duckdb_columns() WHERE table_name = {text_literal(name)} "
            f"AND schema_name = {text_literal(schema or 'main')} ORDER BY column_index"
        )
        return [row[0] for row in found] or None

    def column_types(self, schema: pa.Schema) -> list[str]:
        with self._registered(schema.empty_table()):
            return [str(row[1]) for row in self.run(f"DESCRIBE SELECT * FROM {_ROWS}")]

    def load(self, table: str, rows: pa.Table) -> None:
        columns = column_list(rows.schema.names)
        with self._registered(rows):
            self.run(f"INSERT INTO {quoted(table)} ({columns}) SELECT {columns} FROM {_ROWS}")

    @contextmanager
    def _registered(self, rows: pa.Table) -> Iterator[None]:
        """Make `rows` a view of the connection."""
        self._db.register(_ROWS, rows)
        try:
            yield
        finally:
            self._db.unregister(_ROWS)

    def _roll_back(self) -> None:
        """Roll back; after some errors DuckDB already has, or cannot any more."""
        with contextlib.suppress(self._driver.TransactionException, self._driver.FatalException):
            self._db.execute("ROLLBACK")


class _DuckDbReader:
    binary = "unhex('{}')"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        found = self._connection.execute(sql).to_arrow_table()
        return [tuple(row.values()) for row in found.to_pylist()]

    def schema(self, query: str) -> pa.Schema:
        found: pa.Schema = (
            self._connection.execute(f"SELECT * FROM ({query}) LIMIT 0").to_arrow_table().schema
        )
        return found

    def pieces(
        self, query: str, schema: pa.Schema, rest: str, start: int, rows: int
    ) -> Iterator[Piece]:
        sql = f"SELECT {column_list(schema.names)} FROM ({query}) AS q {rest}"
        yield from arrow_pieces(self._connection.execute(sql).to_arrow_reader(rows), rows, start)


@contextmanager
def read_duckdb(url: str) -> Iterator[QueryReader]:
    """Open a snapshot to read; SOURCE_UNAVAILABLE if another process has locked the file."""
    import duckdb

    try:
        with duckdb.connect(url.partition("://")[2], read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("BEGIN")
            yield _DuckDbReader(connection)
    except duckdb.Error as error:
        locked = isinstance(error, duckdb.IOException) and "lock" in str(error)
        code = ErrorCode.SOURCE_UNAVAILABLE if locked else ErrorCode.INVALID_INPUT
        raise MlctlError(code, f"the query failed: {error}") from error
