"""PostgreSQL, by psycopg: rows are sent by COPY, and a session lock keeps other jobs out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import install_hint
from services.batch.databases.base import TableRef, column_list, quoted
from services.batch.databases.copying import column_type, copied
from services.batch.databases.sink import DatabaseSink

if TYPE_CHECKING:
    import pyarrow as pa

# A dead server is noticed, and a dead client by the server, in about half a minute.
CONNECTING = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": "mlctl batch",
}
# A killed runner's session ends once the server has noticed.
_LOCK_SECONDS = 5.0


def open_postgres(location: str, options: Mapping[str, str]) -> DatabaseSink:
    """The table at a postgresql:// URL; the password may also come from where libpq looks."""
    place = TableRef.parse(location, options)
    return DatabaseSink(Postgres(place), place)


def load_driver() -> Any:
    """The package psycopg; RUNTIME_MISSING says which extra has it."""
    try:
        import psycopg
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "PostgreSQL needs the package psycopg, which is not installed",
            install_hint("postgres"),
        ) from error
    return psycopg


class Postgres:
    """A session that comes back after it was lost; for one thread."""

    replaces = True
    forbids_nul = True

    def __init__(self, place: TableRef) -> None:
        self._driver = load_driver()
        self._place = place
        self._connection: Any = None

    def open(self) -> None:
        with self._translated():
            self._connect()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated():
            if self._connection is None:
                try:
                    self._connect()
                except MlctlError as error:
                    # Our own lost session may hold the lock still.
                    raise MlctlError(ErrorCode.SINK_UNAVAILABLE, error.message) from error
            with self._connection.transaction():
                yield

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = self._connection.execute(_marked(sql), tuple(parameters) or None)
        return found.fetchall() if found.description else []

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_marked(sql), list(rows))

    def columns(self, table: str) -> list[str] | None:
        if self.run("SELECT to_regclass(?)", (quoted(table),)) == [(None,)]:
            return None
        found = self._connection.execute(f"SELECT * FROM {quoted(table)} LIMIT 0")
        return [column.name for column in found.description]

    def column_type(self, kind: pa.DataType) -> str:
        return column_type(kind)

    def load(self, table: str, rows: pa.Table) -> None:
        statement = f"COPY {table} ({column_list(rows.schema.names)}) FROM STDIN (FORMAT csv)"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for block in copied(rows):
                copy.write(block)

    def _connect(self) -> None:
        connection = self._driver.connect(self._place.url, autocommit=True, **CONNECTING)
        deadline = time.monotonic() + _LOCK_SECONDS
        lock = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
        while not connection.execute(lock, (f"mlctl {self._place.table}",)).fetchone()[0]:
            if time.monotonic() > deadline:
                connection.close()
                raise MlctlError(
                    ErrorCode.JOB_RUNNING, f"another process writes to {self._place.shown}"
                )
            time.sleep(0.05)
        self._connection = connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of psycopg as ours; its text about a connection may have what is secret."""
        try:
            yield
        except (self._driver.OperationalError, self._driver.InterfaceError) as error:
            self.close()
            state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
            raise MlctlError(
                ErrorCode.SINK_UNAVAILABLE, f"{self._place.shown} cannot be reached{state}"
            ) from error
        except self._driver.Error as error:
            said = error.diag.message_primary or type(error).__name__
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"{self._place.shown} rejects the statement: {said}"
            ) from error


def _marked(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s") if "?" in sql else sql
