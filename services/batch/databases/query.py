"""Rows of a table or query in PostgreSQL, SQLite or DuckDB; a unit is a range of its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from services.batch.databases.base import column_list, quoted
from services.batch.databases.reading import PARAMETER, open_reader
from services.batch.filters import Filter
from services.batch.locations import without_password
from services.batch.units import Piece, Plan, Unit, UnreadableRow
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows with keys from `first` on, and before `end` if that is not None."""

    start: int
    first: tuple[Any, ...]
    end: tuple[Any, ...] | None


class QuerySource:
    """`SCHEME://...?table=NAME&key=ID`, or `--option query=SELECT...` instead of a table.

    The key, one or more columns, must be unique and not null. The boundaries of the units are part
    of the
    identity, so that rows added or removed between two runs end the second one with JOB_CHANGED.
    """

    def __init__(self, location: str, unit_rows: int, options: Mapping[str, str]) -> None:
        base, _, parameters = location.partition("?")
        given = dict(parse_qsl(parameters, keep_blank_values=True))
        table, key = given.pop("table", ""), given.pop("key", options.get("key", ""))
        self._url = f"{base}?{urlencode(given)}" if given else base
        self.name = without_password(self._url)
        self._query = options.get("query", "").strip().rstrip(";")
        if table:
            self._query = f"SELECT * FROM {quoted(table)}"
        self._key = tuple(filter(None, key.split(",")))
        self._unit_rows = unit_rows
        if not self._query or not self._key:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self.name} needs a {'key' if self._query else 'table or a query'}",
                "Write ?table=NAME&key=COLUMN at its end, or --option query='SELECT ...'.",
            )

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the query."""
        with open_reader(self._url) as reader:
            found = reader.schema(self._query)
        if missing := [name for name in self._key if name not in found.names]:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"key: there is no column {missing[0]!r}")
        return found

    def identity(self) -> Mapping[str, str]:
        ranges = repr([unit.part for unit in self._units])
        return {
            "place": self.name,
            "query": hashlib.sha256(self._query.encode()).hexdigest()[:16],
            "order": ", ".join(self._key),
            "rows": str(sum(unit.rows or 0 for unit in self._units)),
            "ranges": hashlib.sha256(ranges.encode()).hexdigest()[:16],
        }

    def plan(self, columns: Sequence[str], condition: Filter | None) -> Plan:  # noqa: ARG002
        return Plan(self._units)

    def read(self, unit: Unit, columns: Sequence[str], piece_rows: int) -> Iterator[Piece]:
        part: KeyRange = unit.part
        key = column_list(self._key)
        marks = ", ".join([PARAMETER] * len(self._key))
        sql = f"SELECT {column_list(columns)} FROM ({self._query}) AS q WHERE ({key}) >= ({marks})"
        values = [*part.first]
        if part.end is not None:
            sql += f" AND ({key}) < ({marks})"
            values += part.end
        kinds = [(name, self.schema.field(name).type) for name in columns]
        start = part.start
        with open_reader(self._url) as reader:
            for rows in reader.rows(f"{sql} ORDER BY {key}", piece_rows, values):
                yield _piece(start, rows, kinds)
                start += len(rows)
        if start - part.start != unit.rows:
            raise MlctlError(
                ErrorCode.JOB_CHANGED,
                f"the rows of {self.name} changed since the start: {start - part.start} rows from "
                f"{self._key_text(part.first)} on, expected {unit.rows}",
            )

    @cached_property
    def _units(self) -> tuple[Unit, ...]:
        self.schema  # noqa: B018  # reports a key that is no column first
        key, starts, rows = column_list(self._key), list[tuple[Any, ...]](), 0
        last: tuple[Any, ...] | None = None
        with open_reader(self._url) as reader:
            sql = f"SELECT {key} FROM ({self._query}) AS q ORDER BY {key}"
            for block in reader.rows(sql, self._unit_rows):
                for row in block:
                    if row == last or None in row:
                        raise MlctlError(
                            ErrorCode.INVALID_INPUT,
                            f"key {', '.join(self._key)}: {self._key_text(row)} is not unique",
                            "Take columns that are unique together, and never null.",
                        )
                    last = row
                starts.append(block[0])
                rows += len(block)
        size, ends = self._unit_rows, [*starts[1:], None][: len(starts)]
        return tuple(
            Unit(
                f"{index:06}",
                self.name,
                min(size, rows - index * size),
                KeyRange(index * size, first, end),
            )
            for index, (first, end) in enumerate(zip(starts, ends, strict=True))
        )

    def _key_text(self, key: Sequence[Any]) -> str:
        return ", ".join(map(str, key))


def _piece(start: int, rows: Sequence[Sequence[Any]], kinds: Sequence[tuple[str, Any]]) -> Piece:
    """Return the rows as a table; rows with a value of another type than its column are bad."""
    import pyarrow as pa

    problems: dict[int, str] = {}
    arrays = []
    for index, (name, kind) in enumerate(kinds):
        found, wrong = _column([row[index] for row in rows], kind)
        arrays.append(found)
        for row in wrong:
            problems.setdefault(row, f"column {name!r} is not {kind}")
    table = pa.table(arrays, schema=pa.schema(list(kinds)))
    numbers = np.arange(start, start + len(rows))
    if not problems:
        return Piece(table, numbers)
    good = np.delete(np.arange(len(rows)), list(problems))
    names = [name for name, _kind in kinds]
    unreadable = tuple(
        UnreadableRow(
            start + row,
            problems[row],
            json.dumps(dict(zip(names, map(as_json, rows[row]), strict=True)), ensure_ascii=False),
        )
        for row in sorted(problems)
    )
    return Piece(table.take(good), numbers[good], unreadable)


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
