"""PostgreSQL through ADBC: Arrow columns in its binary COPY format, in both directions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases.base import (
    Database,
    column_list,
    join_url,
    quoted,
    split_url,
    text_literal,
)
from mlctl.services.batch.pieces import arrow_pieces
from mlctl.services.batch.units import Piece
from mlctl.services.tables.values import as_json

# Each side notices within half a minute that the other one is dead.
_CONNECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "application_name": "mlctl",
}
# A transaction that waits longer for another one is tried again, with a message.
_LOCK_MILLISECONDS = 30_000
_STAGE = "mlctl_load"
# SQLSTATE classes of errors that may pass: connection, transaction, resources, operator, system.
_TRANSIENT = frozenset({"08", "40", "53", "55", "57", "58"})
_SERVER_MESSAGE = re.compile(r"ERROR:\s+(.*)")
_PROTOCOL_VIOLATION = "08P01"


class Postgres(Database):
    """A session, which takes an advisory lock in each transaction if there is a `lock`."""

    forbids_nul = True
    binary = "decode('{}', 'hex')"
    _begin_snapshot = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)

    def __init__(self, url: str, shown: str, lock: str = "") -> None:
        from adbc_driver_postgresql import dbapi

        super().__init__(url, shown, lock)
        self._driver: Any = dbapi
        self._errors = (dbapi.Error,)
        # The types of columns by the Arrow schemas that they can store.
        self._types: dict[pa.Schema, list[str]] = {}
        if lock:
            key = f"hashtextextended({text_literal(f'mlctl {lock}')}, 0)"
            self._begin = (
                "BEGIN",
                f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}",
                f"SELECT 1 FROM pg_advisory_xact_lock({key})",
            )

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return found

    def columns(self, table: str) -> list[str] | None:
        return list(self._columns(table)) or None

    def column_types(self, schema: pa.Schema) -> list[str]:
        """Return the types that ADBC gives to the columns of a new table."""
        stored = _storable(schema.empty_table())
        if stored.schema not in self._types:
            self._ingest(_STAGE, stored, mode="create", temporary=True)
            self._types[stored.schema] = list(self._columns(_STAGE).values())
            self.run(f"DROP TABLE {_STAGE}")
        return self._types[stored.schema]

    def load(self, table: str, rows: pa.Table) -> None:
        """Append rows; columns of other types than ADBC's are converted from text by the server.

        Text converts as in a COPY of CSV: 0.5 is no integer, and long text does not fit varchar(9).
        """
        stored, names = _storable(rows), rows.schema.names
        types = self.column_types(rows.schema)
        columns = self._columns(table)
        expected = [columns[name] for name in names]
        if types == expected:
            schema, name = self._location(table)
            self._ingest(name, stored, mode="append", db_schema_name=schema)
            return
        values = [
            column_list([name])
            if found == kind
            else f"{column_list([name])}::text"
            if kind == "text" or kind.startswith("character")
            else f"CAST({column_list([name])}::text AS {kind})"
            for name, found, kind in zip(names, types, expected, strict=True)
        ]
        self._ingest(_STAGE, stored, mode="create", temporary=True)
        self.run(
            f"INSERT INTO {quoted(table)} ({column_list(names)}) "
            f"SELECT {', '.join(values)} FROM {_STAGE}"
        )
        self.run(f"DROP TABLE {_STAGE}")

    def _ingest(self, table: str, rows: pa.Table, **options: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, rows, **options)

    def _columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table and their types; none if it does not exist."""
        found = self.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = to_regclass({text_literal(quoted(table))}) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return {str(name): str(kind) for name, kind in found}

    def _location(self, table: str) -> tuple[str, str]:
        """Return the schema and the name of a table, which the search path may find."""
        ((schema, name),) = self.run(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace ns ON ns.oid = relnamespace "
            f"WHERE pg_class.oid = to_regclass({text_literal(quoted(table))})"
        )
        return str(schema), str(name)

    def schema(self, query: str) -> pa.Schema:
        return pa.schema([(field.name, _read_type(field)[0]) for field in self._fields(query)])

    def pieces(
        self, query: str, schema: pa.Schema, rest: str, start: int, rows: int
    ) -> Iterator[Piece]:
        fields = self._fields(query)
        values = []
        for name in schema.names:
            kind = _read_type(fields.field(name))[1]
            column = column_list([name])
            values.append(f"CAST({column} AS {kind}) AS {column}" if kind else column)
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(values)} FROM ({query}) AS q {rest}")
            yield from arrow_pieces(cursor.fetch_record_batch(), rows, schema, start=start)

    def _connect(self, *, read_only: bool) -> None:  # noqa: ARG002 - the transaction only reads
        base, parameters = split_url(self._url)
        self._connection = self._driver.connect(
            join_url(base, {**_CONNECTION, **parameters}), autocommit=True
        )

    def _roll_back(self, error: BaseException) -> None:
        if not (isinstance(error, self._driver.Error) and _is_lost(error)):
            self.run("ROLLBACK")

    def _translate(self, error: Any, unavailable: ErrorCode) -> Exception:
        # Text about a connection may contain secrets.
        if not _is_transient(error):
            return self._rejected(_message(error))
        self.close()
        state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
        return MlctlError(unavailable, f"{self._shown} cannot be reached{state}")

    def _fields(self, query: str) -> pa.Schema:
        with self._connection.cursor() as cursor:
            found: pa.Schema = cursor.adbc_execute_schema(query)
            return found


def _is_lost(error: Any) -> bool:
    """Return whether the connection cannot be used any more."""
    return not error.sqlstate


def _is_transient(error: Any) -> bool:
    state = error.sqlstate
    if not state:
        # Without a state the server did not answer, unless ADBC itself rejects the values.
        return bool(error.status_code.name == "IO")
    return state[:2] in _TRANSIENT and state != _PROTOCOL_VIOLATION


def _message(error: Any) -> str:
    """Return the server's primary message, or the first line of ADBC's."""
    text = str(error)
    match = _SERVER_MESSAGE.search(text)
    return (match[1] if match else text.splitlines()[0])[:200]


def _read_type(field: Any) -> tuple[Any, str | None]:
    """Return the Arrow type that a column is read as, and the SQL type that it needs a cast to."""
    kind = field.type
    inner = kind.value_type if pa.types.is_list(kind) else kind
    if not isinstance(inner, pa.BaseExtensionType) and not pa.types.is_interval(inner):
        return kind, None
    numeric = isinstance(inner, pa.OpaqueType) and inner.type_name == "numeric"
    found, cast = (pa.float64(), "double precision") if numeric else (pa.string(), "text")
    return (found, cast) if inner is kind else (pa.list_(found), f"{cast}[]")


def _storable(table: pa.Table) -> pa.Table:
    """Return the columns as ADBC can store them: nested values as JSON, uint64 as decimals."""
    columns = [_storable_column(table.column(index)) for index in range(table.num_columns)]
    return pa.table(columns, names=table.schema.names)


def _storable_column(column: Any) -> Any:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _storable_column(column.cast(kind.storage_type))
    if types.is_uint64(kind):
        return column.cast(pa.decimal128(20, 0))
    if types.is_null(kind):
        return column.cast(pa.string())
    if types.is_nested(kind) and not _is_list_of_numbers(kind):
        texts = [None if v is None else json.dumps(as_json(v)) for v in column.to_pylist()]
        return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))
    if types.is_large_list(kind):
        return column.cast(pa.list_(kind.value_type))
    return column


def _is_list_of_numbers(kind: Any) -> bool:
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    inner = kind.value_type
    whole = types.is_integer(inner) and not types.is_uint64(inner)
    return bool(whole or types.is_floating(inner) or types.is_boolean(inner))
