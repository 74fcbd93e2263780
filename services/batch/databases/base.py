"""The interface of databases: tables to write answers to, and queries to read rows from."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.locations import without_password
from mlctl.services.batch.units import Piece

_OPTIONS = ("table", "key", "create")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table: `url` is of its database, `table` its name, with a schema if it has one.

    Rows with the same values in the columns `key` replace each other. The table is created only if
    `create` is true.
    """

    url: str
    table: str
    key: tuple[str, ...]
    create: bool

    @property
    def shown(self) -> str:
        """The table for messages, without a password."""
        return f"table {self.table} of {without_password(self.url)}"

    @classmethod
    def parse(cls, location: str, options: Mapping[str, str]) -> TableRef:
        """Parse SCHEME://...?table=scores&key=id; `options` supply what the location lacks."""
        base, parameters = split_url(location)
        ours = {name: parameters.pop(name, options.get(name, "")) for name in _OPTIONS}
        if not _NAME.fullmatch(ours["table"]):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{ours['table']!r} is not a table name",
                "Write ?table=NAME at the end of the location, or --option table=NAME.",
            )
        if ours["create"] not in {"", "yes", "no"}:
            raise MlctlError(ErrorCode.INVALID_INPUT, "create: write yes or no")
        key = tuple(filter(None, ours["key"].split(",")))
        return cls(join_url(base, parameters), ours["table"], key, ours["create"] == "yes")


class Database(ABC):
    """A connection to a database, for one thread at a time.

    Methods raise MlctlError: SINK_UNAVAILABLE (reading: SOURCE_UNAVAILABLE) if the database cannot
    be reached, INVALID_INPUT if it rejects a statement; or an OSError if its disk is full.
    """

    # Whether ON CONFLICT replaces a row with the same key; else the old one is deleted before.
    replaces: ClassVar[bool] = True
    # Whether columns have types, which no value can lack.
    typed: ClassVar[bool] = True
    # Whether text with a NUL character is rejected.
    forbids_nul: ClassVar[bool] = False
    # How a binary value is written in SQL, from its hexadecimal digits.
    binary: ClassVar[str]
    # Statements that begin a transaction, and one that only reads.
    _begin: Sequence[str] = ("BEGIN",)
    _begin_snapshot: Sequence[str] = ("BEGIN",)
    # What the driver raises.
    _errors: tuple[type[Exception], ...]

    def __init__(self, url: str, shown: str, lock: str = "") -> None:  # noqa: ARG002
        """Connect later. `shown` is for messages; transactions of an equal `lock` take turns."""
        self._url = url
        self._shown = shown
        self._connection: Any = None

    def open(self) -> None:
        """Connect; JOB_RUNNING if another process has locked the file."""
        with self._translated(ErrorCode.SINK_UNAVAILABLE):
            self._connect(read_only=False)

    def close(self) -> None:
        """Disconnect; `transaction` connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is run inside, or none of it; reconnect first after a lost connection."""
        if self._connection is None:
            self.open()
        with self._translated(ErrorCode.SINK_UNAVAILABLE):
            try:
                for statement in self._begin:
                    self.run(statement)
                yield
                self.run("COMMIT")
            except BaseException as error:
                self._roll_back(error)
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Connect for the block, which reads one state of the database."""
        with self._translated(ErrorCode.SOURCE_UNAVAILABLE), closing(self):
            self._connect(read_only=True)
            for statement in self._begin_snapshot:
                self.run(statement)
            yield

    @abstractmethod
    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""

    @abstractmethod
    def columns(self, table: str) -> list[str] | None:
        """Return the names of a table's columns; None if the table does not exist."""

    @abstractmethod
    def column_types(self, schema: pa.Schema) -> list[str]:
        """Return the SQL types of columns that can store those of `schema`."""

    @abstractmethod
    def load(self, table: str, rows: pa.Table) -> None:
        """Append `rows` to `table` by the names of their columns."""

    @abstractmethod
    def schema(self, query: str) -> pa.Schema:
        """Return the columns of a query, as `pieces` reads them."""

    @abstractmethod
    def pieces(
        self, query: str, schema: pa.Schema, rest: str, start: int, rows: int
    ) -> Iterator[Piece]:
        """Yield the columns `schema` of `query`, at most `rows` rows at a time.

        `rest` are the conditions and the order; `start` is the number of the first row.
        """

    @abstractmethod
    def _connect(self, *, read_only: bool) -> None: ...

    @abstractmethod
    def _roll_back(self, error: BaseException) -> None:
        """Undo the transaction in which there was `error`, if it is still open."""

    @abstractmethod
    def _translate(self, error: Any, unavailable: ErrorCode) -> Exception:
        """Return what to raise for an error of the driver."""

    @contextmanager
    def _translated(self, unavailable: ErrorCode) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise self._translate(error, unavailable) from error

    def _rejected(self, reason: object) -> MlctlError:
        return MlctlError(ErrorCode.INVALID_INPUT, f"{self._shown} rejects the statement: {reason}")


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its query, and the parameters of that; as in libpq, "+" is no space."""
    base, _, query = url.partition("?")
    return base, dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))


def join_url(base: str, parameters: Mapping[str, str]) -> str:
    """Return the URL with these parameters as its query."""
    return f"{base}?{urlencode(parameters, quote_via=quote)}" if parameters else base


def quoted(name: str) -> str:
    """Return a table's name as SQL, with its schema if it has one."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def column_list(names: Iterable[str]) -> str:
    """Return the names of columns, which may contain dots, as SQL."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def text_literal(text: str) -> str:
    """Return text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any, binary: str) -> str:
    """Return a value as SQL; `binary` is the database's.

    Databases convert a text literal to the type that it is compared with, such as a timestamp.
    """
    if isinstance(value, bytes):
        return binary.format(value.hex())
    return repr(value) if isinstance(value, int | float) else text_literal(str(value))


def literals(values: Sequence[Any], binary: str) -> str:
    """Return several values as SQL."""
    return ", ".join(literal(value, binary) for value in values)
