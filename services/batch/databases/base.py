"""The database interface of table sinks, and the table that a location names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlencode

from bundle.errors import ErrorCode, MlctlError
from services.batch.locations import without_password

if TYPE_CHECKING:
    import pyarrow as pa

_OURS = ("table", "key", "create")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table: `url` is of its database, `shown` the same without a password.

    Rows with the same values in the columns `key` replace each other. The table is only made
    if `create` says so.
    """

    url: str
    table: str
    key: tuple[str, ...]
    create: bool

    @property
    def shown(self) -> str:
        """The place for messages."""
        return f"table {self.table} of {without_password(self.url)}"

    @classmethod
    def parse(cls, location: str, options: Mapping[str, str]) -> TableRef:
        """A location such as SCHEME://...?table=scores&key=id; options say what it does not."""
        base, _, query = location.partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        ours = {name: given.pop(name, options.get(name, "")) for name in _OURS}
        url = f"{base}?{urlencode(given)}" if given else base
        if not _NAME.fullmatch(ours["table"]):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{ours['table']!r} is not a table name",
                "Write ?table=NAME at the end of the location, or --option table=NAME.",
            )
        if ours["create"] not in {"", "yes", "no"}:
            raise MlctlError(ErrorCode.INVALID_INPUT, "create: write yes or no")
        key = tuple(filter(None, ours["key"].split(",")))
        return cls(url, ours["table"], key, ours["create"] == "yes")


class Database(Protocol):
    """An open database. SQL has ? for its parameters, and quoted names.

    Methods raise MlctlError: SINK_UNAVAILABLE if the database cannot be reached, INVALID_INPUT if
    it rejects a statement; or an OSError if its disk is full.
    """

    # Whether ON CONFLICT replaces a row with the same key; else the old one is deleted before.
    replaces: bool
    # Whether text with a NUL character is rejected.
    forbids_nul: bool

    def open(self) -> None:
        """Connect and take the lock of the table; JOB_RUNNING if another process has it."""
        ...

    def close(self) -> None: ...

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing of what is run inside; connects again if the connection was lost."""
        ...

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""
        ...

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...

    def columns(self, table: str) -> list[str] | None:
        """The names of a table's columns; None if there is no such table."""
        ...

    def column_type(self, kind: pa.DataType) -> str:
        """The SQL type for values of an Arrow type."""
        ...

    def load(self, table: str, rows: pa.Table) -> None:
        """Append rows to `table`, a quoted name, by the names of their columns."""
        ...


def quoted(name: str) -> str:
    """An identifier of SQL, with its schema if it has one."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def column_list(names: Iterable[str]) -> str:
    """Columns, whose names may have dots."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
