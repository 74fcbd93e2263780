"""Rows of a table or query in PostgreSQL, SQLite or DuckDB; a unit is a range of its key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases.base import (
    Database,
    column_list,
    join_url,
    literals,
    quoted,
    split_url,
)
from mlctl.services.batch.databases.drivers import open_database
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.locations import without_password
from mlctl.services.batch.units import ColumnReading, JobPlan, Piece, Unit, with_types


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows with keys from `first` on, and before `end` if that is not None."""

    start: int
    first: tuple[Any, ...]
    end: tuple[Any, ...] | None


class QuerySource:
    """`SCHEME://...?table=NAME&key=ID`, or `--option query=SELECT...` instead of a table.

    The key, one or more columns, must be unique and not null. The boundaries of the units are part
    of the identity, so that rows added or removed between two runs end the second one with
    JOB_CHANGED.
    """

    waits = True
    only_text = open_columns = False

    def __init__(self, location: str, unit_rows: int, options: Mapping[str, str]) -> None:
        base, parameters = split_url(location)
        table, key = parameters.pop("table", ""), parameters.pop("key", options.get("key", ""))
        self._url = join_url(base, parameters)
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
        with self._snapshot() as reader:
            found = reader.schema(self._query)
        if missing := [name for name in self._key if name not in found.names]:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"key: there is no column {missing[0]!r}")
        return found

    def identity(self) -> Mapping[str, str]:
        ranges = repr([unit.part for unit in self._units])
        return {
            "location": self.name,
            "query": hashlib.sha256(self._query.encode()).hexdigest()[:16],
            "order": ", ".join(self._key),
            "rows": str(sum(unit.rows or 0 for unit in self._units)),
            "ranges": hashlib.sha256(ranges.encode()).hexdigest()[:16],
        }

    def plan(
        self,
        columns: Sequence[str],  # noqa: ARG002
        condition: Filter | None,  # noqa: ARG002
        reading: ColumnReading | None = None,
    ) -> JobPlan:
        if reading is not None and not open_database(self._url, self.name).typed:
            self.schema = with_types(self.schema, reading.types)
        return JobPlan(self._units)

    def read(self, unit: Unit, columns: Sequence[str], piece_rows: int) -> Iterator[Piece]:
        part: KeyRange = unit.part
        schema, count = pa.schema([self.schema.field(name) for name in columns]), 0
        with self._snapshot() as reader:
            key = f"({column_list(self._key)})"
            rest = f"WHERE {key} >= ({literals(part.first, reader.binary)})"
            if part.end is not None:
                rest += f" AND {key} < ({literals(part.end, reader.binary)})"
            rest += f" ORDER BY {column_list(self._key)}"
            for piece in reader.pieces(self._query, schema, rest, part.start, piece_rows):
                count += piece.table.num_rows + len(piece.unreadable)
                yield piece
        if count != unit.rows:
            raise MlctlError(
                ErrorCode.JOB_CHANGED,
                f"the rows of {self.name} changed since the start: {count} rows from "
                f"{_shown(part.first)} on, expected {unit.rows}",
            )

    @contextmanager
    def _snapshot(self) -> Iterator[Database]:
        database = open_database(self._url, self.name)
        with database.snapshot():
            yield database

    @cached_property
    def _units(self) -> tuple[Unit, ...]:
        self.schema  # noqa: B018  # reports a key that is no column first
        size, key, query = self._unit_rows, column_list(self._key), f"({self._query}) AS q"
        null = " OR ".join(f"{column_list([name])} IS NULL" for name in self._key)
        with self._snapshot() as reader:
            wrong = reader.run(
                f"SELECT {key} FROM {query} GROUP BY {key} HAVING count(*) > 1 OR {null} LIMIT 1"
            )
            if wrong:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"key {', '.join(self._key)}: {_shown(wrong[0])} is not unique",
                    "Take columns that are unique together, and never null.",
                )
            ((rows,),) = reader.run(f"SELECT count(*) FROM {query}")
            starts = reader.run(
                f"SELECT {key} FROM (SELECT {key}, row_number() OVER (ORDER BY {key}) - 1 AS "
                f"mlctl_row FROM {query}) AS numbered WHERE mlctl_row % {size} = 0 ORDER BY {key}"
            )
        ends = [*starts[1:], None][: len(starts)]
        return tuple(
            Unit(
                f"{index:06}",
                self.name,
                min(size, rows - index * size),
                KeyRange(index * size, first, end),
            )
            for index, (first, end) in enumerate(zip(starts, ends, strict=True))
        )


def _shown(key: Sequence[Any]) -> str:
    return ", ".join(map(str, key))
