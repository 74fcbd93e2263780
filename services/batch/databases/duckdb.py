"""Tables in a file of DuckDB, which reads Arrow tables without conversion."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from bundle.files import NO_SPACE
from bundle.packages import install_hint
from services.batch.databases.base import TableRef, column_list, quoted
from services.batch.databases.sink import DatabaseSink

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = "mlctl_rows"
_FULL = tuple(map(os.strerror, NO_SPACE))


def open_duckdb(location: str, options: Mapping[str, str]) -> DatabaseSink:
    """The table in a file: duckdb://PATH?table=NAME."""
    place = TableRef.parse(location, options)
    return DatabaseSink(DuckDb(place), place)


def load_driver() -> Any:
    """The package duckdb; RUNTIME_MISSING says which extra has it."""
    try:
        import duckdb
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "DuckDB needs the package duckdb, which is not installed",
            install_hint("duckdb"),
        ) from error
    return duckdb


class DuckDb:
    """An open file, which DuckDB locks. Use it from one thread."""

    # No index: within a transaction, its unique indexes reject keys that were just deleted.
    replaces = False
    forbids_nul = False

    def __init__(self, place: TableRef) -> None:
        self._driver = load_driver()
        self._place = place
        self._path = place.url.partition("://")[2]
        self._db: Any = None

    def open(self) -> None:
        try:
            self._db = self._driver.connect(self._path)
        except self._driver.IOException as error:
            locked = "lock" in str(error)
            raise MlctlError(
                ErrorCode.JOB_RUNNING if locked else ErrorCode.INVALID_INPUT,
                f"another process writes to {self._place.shown}"
                if locked
                else f"{self._place.shown} cannot be opened",
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
                    ErrorCode.SINK_UNAVAILABLE, f"{self._place.shown} cannot be written: {error}"
                ) from error
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._place.shown} rejects the statement: {error}"
            ) from error

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._db.execute(sql, list(parameters)).fetchall()
        return found

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._db.execute(sql, list(row))

    def columns(self, table: str) -> list[str] | None:
        schema, _, name = table.rpartition(".")
        found = self.run(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND schema_name = ? "
            "ORDER BY column_index",
            (name, schema or "main"),
        )
        return [row[0] for row in found] or None

    def column_type(self, kind: pa.DataType) -> str:
        import pyarrow as pa

        self._db.register(_ROWS, pa.table({"x": pa.array([], kind)}))
        ((_name, found, *_rest),) = self.run(f"DESCRIBE SELECT * FROM {_ROWS}")
        self._db.unregister(_ROWS)
        return str(found)

    def load(self, table: str, rows: pa.Table) -> None:
        columns = column_list(rows.schema.names)
        self._db.register(_ROWS, rows)
        try:
            self._db.execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {quoted(_ROWS)}"
            )
        finally:
            self._db.unregister(_ROWS)

    def _roll_back(self) -> None:
        """Roll back; after some errors DuckDB already has, or cannot any more."""
        with contextlib.suppress(self._driver.TransactionException, self._driver.FatalException):
            self._db.execute("ROLLBACK")
