"""Rows of a query on PostgreSQL, SQLite or DuckDB, in the order of a key."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import BadRow, Chunk, SourceRequest, Unit
from services.batch.databases.base import column_list, quoted
from services.batch.databases.reading import SnapshotReader, open_reader
from services.batch.locations import without_password
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa


_INDEX_CHARS = 8


class QuerySource:
    """`SCHEME://...?table=NAME&key=ID`, or `--option query=SELECT...` instead of a table.

    The key, one or more columns, must tell rows apart: it gives them the same place in each run.
    A unit's id has a digest of its keys, so that a unit with other rows is never taken as done.
    """

    def __init__(self, request: SourceRequest) -> None:
        base, _, parameters = request.location.partition("?")
        given = dict(parse_qsl(parameters, keep_blank_values=True))
        table, key = given.pop("table", ""), given.pop("key", request.options.get("key", ""))
        self._url = f"{base}?{urlencode(given)}" if given else base
        self.name = without_password(self._url)
        self._query = request.options.get("query", "").strip().rstrip(";")
        if table:
            self._query = f"SELECT * FROM {quoted(table)}"
        self._key = tuple(filter(None, key.split(",")))
        self._unit_rows = request.unit_rows
        if not self._query or not self._key:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self.name} needs a {'key' if self._query else 'table or a query'}",
                "Write ?table=NAME&key=COLUMN at its end, or --option query='SELECT ...'.",
            )

    @cached_property
    def schema(self) -> pa.Schema:
        with open_reader(self._url) as reader:
            found = reader.schema(self._query)
        if missing := [name for name in self._key if name not in found.names]:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"key: there is no column {missing[0]!r}")
        return found

    def identity(self) -> Mapping[str, str]:
        return self._identity

    def total_rows(self) -> int | None:
        return int(self._identity["rows"])

    def scan(self, columns: Sequence[str], done: Collection[str]) -> Iterator[Chunk]:
        names = [*dict.fromkeys((*self._key, *columns))]
        order, width = column_list(self._key), len(self._key)
        known = {unit[:_INDEX_CHARS]: unit for unit in done}
        sql = f"SELECT {column_list(names)} FROM ({self._query}) AS q ORDER BY {order}"
        with open_reader(self._url) as reader:
            if self._measured(reader) != self._identity:
                raise MlctlError(
                    ErrorCode.JOB_CHANGED, f"the rows of {self.name} changed since the start"
                )
            last: tuple[Any, ...] | None = None
            start = 0
            for index, rows in enumerate(reader.rows(sql, self._unit_rows)):
                last = self._check_keys(rows, last)
                number = f"{index:0{_INDEX_CHARS}}"
                unit = Unit(f"{number}-{_digest(rows, width)}", self.name, start, len(rows))
                start += len(rows)
                if known.get(number, unit.id) != unit.id:
                    raise MlctlError(
                        ErrorCode.JOB_CHANGED,
                        f"the rows of {self.name} changed since the start: rows were added or "
                        f"removed before {', '.join(map(str, last))} in the order of "
                        f"{', '.join(self._key)}",
                    )
                if unit.id not in done:
                    wanted = [names.index(name) for name in columns]
                    schema = self.schema
                    kinds = [(name, schema.field(name).type) for name in columns]
                    yield _chunk(unit, [[row[i] for row in rows] for i in wanted], kinds)

    @cached_property
    def _identity(self) -> dict[str, str]:
        self.schema  # noqa: B018  # reports a key that is no column first
        with open_reader(self._url) as reader:
            return self._measured(reader)

    def _measured(self, reader: SnapshotReader) -> dict[str, str]:
        """Return values that added or removed rows usually change."""
        key = column_list(self._key[:1])
        count, first, last = reader.row(
            f"SELECT count(*), min({key}), max({key}) FROM ({self._query}) AS q"
        )
        return {
            "place": self.name,
            "query": hashlib.sha256(self._query.encode()).hexdigest()[:16],
            "order": ", ".join(self._key),
            "rows": str(count),
            "keys": f"{first} to {last}",
        }

    def _check_keys(
        self, rows: Sequence[tuple[Any, ...]], last: tuple[Any, ...] | None
    ) -> tuple[Any, ...]:
        """Return the last key; INVALID_INPUT if a key is null or not unique."""
        width = len(self._key)
        for row in rows:
            key = row[:width]
            if key == last or None in key:
                shown = ", ".join(map(str, key))
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"key {', '.join(self._key)}: {shown} does not tell rows apart",
                    "Take columns that are unique together, and never null.",
                )
            last = key
        assert last is not None
        return last


open_source = QuerySource


def _digest(rows: Sequence[tuple[Any, ...]], width: int) -> str:
    """Return a digest of the rows' keys: their first `width` values."""
    keys = repr([row[:width] for row in rows]).encode()
    return hashlib.blake2b(keys, digest_size=8).hexdigest()


def _chunk(unit: Unit, columns: list[list[Any]], kinds: Sequence[tuple[str, Any]]) -> Chunk:
    """Return the rows as a table; rows with a value of another type than the column's are bad."""
    import pyarrow as pa

    problems: dict[int, str] = {}
    arrays = []
    for (name, kind), values in zip(kinds, columns, strict=True):
        found, bad = _column(values, kind)
        arrays.append(found)
        for index in bad:
            problems.setdefault(index, f"column {name!r} is not {kind}")
    table = pa.table(arrays, schema=pa.schema(list(kinds)))
    if not problems:
        return Chunk(unit, table)
    good = [index for index in range(unit.rows) if index not in problems]
    rejected = tuple(
        BadRow(
            unit.start + index,
            problems[index],
            {kind[0]: as_json(values[index]) for kind, values in zip(kinds, columns, strict=True)},
        )
        for index in sorted(problems)
    )
    numbers = [unit.start + index for index in good]
    return Chunk(unit, table.take(pa.array(good, pa.int64())), rejected, numbers)


def _column(values: list[Any], kind: Any) -> tuple[Any, list[int]]:
    import pyarrow as pa

    fitting: list[Any] = []
    bad: list[int] = []
    try:
        return pa.array(values, kind), bad
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        for index, value in enumerate(values):
            try:
                fitting.append(_fitted(value, kind))
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                fitting.append(None)
                bad.append(index)
    return pa.array(fitting, kind), bad


def _fitted(value: Any, kind: Any) -> Any:
    """Convert a value to the type: numbers to floats, values of unknown types to text."""
    import pyarrow as pa
    from pyarrow import types

    if value is not None and types.is_floating(kind) and not isinstance(value, (str, bytes)):
        value = float(value)
    elif types.is_string(kind) and not isinstance(value, (str, bytes, int, float, type(None))):
        value = str(value)
    return pa.scalar(value, kind).as_py()
