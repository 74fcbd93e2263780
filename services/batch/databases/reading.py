"""Databases that rows are read from: a snapshot, and a query's rows in their order."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bundle.errors import ErrorCode, MlctlError
from services.batch.locations import without_password

if TYPE_CHECKING:
    import pyarrow as pa

# Stands for a parameter: a question mark or %s may also be part of the query.
PARAMETER = "?mlctl?"
_SAMPLE = 20_000
# Beyond that the whole job waits, and says so.
_LOCK_SECONDS = 5.0
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SnapshotReader(Protocol):
    """An open snapshot of a database."""

    def row(self, sql: str) -> tuple[Any, ...]:
        """The only row that a statement gives."""
        ...

    def schema(self, sql: str) -> pa.Schema:
        """The columns that a query gives."""
        ...

    def rows(
        self, sql: str, count: int, parameters: Sequence[Any] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, `count` at a time; PARAMETER stands for each parameter."""
        ...


def open_reader(url: str) -> AbstractContextManager[SnapshotReader]:
    """The database of a postgresql://, sqlite:// or duckdb:// URL, only to read."""
    scheme = url.partition("://")[0].lower()
    readers = {"sqlite": _sqlite, "duckdb": _duckdb}
    return readers.get(scheme, _postgres)(url)


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def row(self, sql: str) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._connection.execute(sql).fetchone()
        return found

    def schema(self, sql: str) -> pa.Schema:
        import pyarrow as pa

        found = self._connection.execute(f"SELECT * FROM ({sql}) AS q LIMIT 0").description
        return pa.schema([(column.name, _postgres_type(column.type_code)) for column in found])

    def rows(
        self, sql: str, count: int, parameters: Sequence[Any] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        if parameters:
            sql = sql.replace("%", "%%").replace(PARAMETER, "%s")
        with self._connection.cursor("mlctl_rows", binary=True) as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            while found := cursor.fetchmany(count):
                yield found


def _postgres_type(code: int) -> Any:
    """By the numbers of PostgreSQL's own types; what is not known here is read as text."""
    import pyarrow as pa

    plain = {
        16: pa.bool_(), 17: pa.binary(), 20: pa.int64(), 21: pa.int16(), 23: pa.int32(),
        700: pa.float32(), 701: pa.float64(), 1700: pa.float64(), 1082: pa.date32(),
        1114: pa.timestamp("us"), 1184: pa.timestamp("us", "UTC"),
    }  # fmt: skip
    inner = {1000: 16, 1005: 21, 1007: 23, 1016: 20, 1021: 700, 1022: 701, 1231: 1700, 1009: 25}
    if code in inner:
        return pa.list_(plain.get(inner[code], pa.string()))
    return plain.get(code, pa.string())


@contextmanager
def _postgres(url: str) -> Iterator[SnapshotReader]:
    from services.batch.databases.postgres import CONNECTING, load_driver

    psycopg = load_driver()
    try:
        with psycopg.connect(url, **CONNECTING) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield _Postgres(connection)
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise MlctlError(
            ErrorCode.SOURCE_UNAVAILABLE, f"{without_password(url)} cannot be reached"
        ) from error
    except psycopg.Error as error:
        said = error.diag.message_primary or type(error).__name__
        raise MlctlError(ErrorCode.INVALID_INPUT, f"the query failed: {said}") from error


class _Embedded:
    """What SQLite and DuckDB have in common."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def row(self, sql: str) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._connection.execute(sql).fetchone()
        return found

    def rows(
        self, sql: str, count: int, parameters: Sequence[Any] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._connection.execute(sql.replace(PARAMETER, "?"), list(parameters))
        while found := cursor.fetchmany(count):
            yield found


class _Sqlite(_Embedded):
    def schema(self, sql: str) -> pa.Schema:
        """SQLite has no types of columns: what most of the first values are counts."""
        import pyarrow as pa

        found = self._connection.execute(f"SELECT * FROM ({sql}) LIMIT {_SAMPLE}")
        names = [column[0] for column in found.description]
        columns = list(zip(*found.fetchall(), strict=True)) or [()] * len(names)
        return pa.schema(
            [(name, _sqlite_type(values)) for name, values in zip(names, columns, strict=True)]
        )


def _sqlite_type(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    counts = Counter(map(type, values))
    numbers = counts[int] + counts[float]
    # What most values are: the others are bad rows.
    if numbers > counts[str] + counts[bytes]:
        return pa.float64() if counts[float] else pa.int64()
    return pa.binary() if counts[bytes] > counts[str] else pa.string()


@contextmanager
def _sqlite(url: str) -> Iterator[SnapshotReader]:
    path = Path(url.partition("://")[2]).resolve()
    try:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=_LOCK_SECONDS
        )
        try:
            connection.execute("BEGIN")
            yield _Sqlite(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        # The low byte; the others tell more of the same.
        locked = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _LOCKED
        code = ErrorCode.SOURCE_UNAVAILABLE if locked else ErrorCode.INVALID_INPUT
        raise MlctlError(code, f"{url}: {error}") from error


class _DuckDb(_Embedded):
    def schema(self, sql: str) -> pa.Schema:
        found: pa.Schema = (
            self._connection.sql(f"SELECT * FROM ({sql}) LIMIT 0").to_arrow_table().schema
        )
        return found


@contextmanager
def _duckdb(url: str) -> Iterator[SnapshotReader]:
    from services.batch.databases.duckdb import load_driver

    duckdb = load_driver()
    try:
        with duckdb.connect(url.partition("://")[2], read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("BEGIN")
            yield _DuckDb(connection)
    except duckdb.Error as error:
        locked = isinstance(error, duckdb.IOException) and "lock" in str(error)
        code = ErrorCode.SOURCE_UNAVAILABLE if locked else ErrorCode.INVALID_INPUT
        raise MlctlError(code, f"the query failed: {error}") from error
