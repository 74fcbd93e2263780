"""Tables and queries of a DuckDB file, which reads and returns Arrow columns."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import NO_SPACE
from mlctl.services.batch.databases.base import (
    Database,
    column_list,
    quoted,
    text_literal,
)
from mlctl.services.batch.pieces import arrow_pieces
from mlctl.services.batch.units import Piece

_ROWS = "mlctl_rows"
_FULL = tuple(map(os.strerror, NO_SPACE))


class DuckDb(Database):
    """An open file, which DuckDB locks."""

    # No index: within a transaction, its unique indexes reject keys that were just deleted.
    replaces = False
    binary = "unhex('{}')"
    _begin_snapshot = ("SET TimeZone = 'UTC'", "BEGIN")

    def __init__(self, url: str, shown: str, lock: str = "") -> None:
        import duckdb

        super().__init__(url, shown, lock)
        self._driver = duckdb
        self._errors = (duckdb.Error,)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        # Not fetchall: for times with a zone it needs another package.
        found = self._connection.execute(sql).to_arrow_table()
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

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
        self._connection.register(_ROWS, rows)
        try:
            yield
        finally:
            self._connection.unregister(_ROWS)

    def schema(self, query: str) -> pa.Schema:
        found = self._connection.execute(f"SELECT * FROM ({query}) LIMIT 0").to_arrow_table()
        schema: pa.Schema = found.schema
        return schema

    def pieces(
        self, query: str, schema: pa.Schema, rest: str, start: int, rows: int
    ) -> Iterator[Piece]:
        sql = f"SELECT {column_list(schema.names)} FROM ({query}) AS q {rest}"
        yield from arrow_pieces(
            self._connection.execute(sql).to_arrow_reader(rows), rows, schema, start=start
        )

    def _connect(self, *, read_only: bool) -> None:
        path = self._url.partition("://")[2]
        try:
            self._connection = self._driver.connect(path, read_only=read_only)
        except self._driver.IOException as error:
            if "lock" not in str(error):
                raise MlctlError(
                    ErrorCode.INVALID_INPUT, f"{self._shown} cannot be opened"
                ) from error
            raise MlctlError(
                ErrorCode.SOURCE_UNAVAILABLE if read_only else ErrorCode.JOB_RUNNING,
                f"another process has locked {self._shown}",
            ) from error

    def _roll_back(self, error: BaseException) -> None:  # noqa: ARG002
        # After some errors DuckDB already has, or cannot any more.
        with suppress(self._driver.TransactionException, self._driver.FatalException):
            self.run("ROLLBACK")

    def _translate(self, error: Any, unavailable: ErrorCode) -> Exception:
        if any(text in str(error) for text in _FULL):
            # After a failed write DuckDB rejects all statements until it is opened again.
            self.close()
            return OSError(errno.ENOSPC, "no space left for the database")
        if isinstance(error, self._driver.IOException):
            self.close()
            return MlctlError(unavailable, f"{self._shown} cannot be reached: {error}")
        return self._rejected(error)
