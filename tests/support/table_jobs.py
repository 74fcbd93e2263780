"""A job whose answers go to a table: its units, and the rows that are in the table."""

from __future__ import annotations

import itertools
import sqlite3
from typing import Any

import duckdb
import psycopg
import pyarrow as pa

from services.batch.base import BadRow, Job, QuarantineSink, SinkRequest, Unit, UnitResult
from services.batch.databases.sink import DatabaseSink
from services.batch.sinks import open_sink

MARK = [("mlctl_digest", pa.dictionary(pa.int32(), pa.string()))]
MARK += [("mlctl_scored_at", pa.timestamp("us", "UTC"))]
SCHEMA = pa.schema([("id", pa.int64()), ("y", pa.list_(pa.float32(), 2)), *MARK])
JOB = Job({"input": "a"}, SCHEMA, SCHEMA, {"bento": "b"})
_micros = itertools.count(1_700_000_000_000_000)


def sink_at(location: str) -> DatabaseSink:
    sink = open_sink(SinkRequest(location))
    assert isinstance(sink, DatabaseSink)
    assert isinstance(sink, QuarantineSink)
    return sink


def query(location: str, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, where $T stands for the table of `location`."""
    base, _, parameters = location.partition("?")
    table = next(p for p in parameters.split("&") if p.startswith("table=")).partition("=")[2]
    statement, path = sql.replace("$T", table), base.partition("://")[2]
    if base.startswith("sqlite"):
        connection: Any = sqlite3.connect(path, isolation_level=None)
    elif base.startswith("duckdb"):
        connection = duckdb.connect(path)
    else:
        connection = psycopg.connect(location.partition("&")[0], autocommit=True)
    found = connection.execute(statement)
    rows = found.fetchall() if found.description else []
    connection.close()
    return [tuple(row) for row in rows]


def result(index: int, bad: tuple[BadRow, ...] = (), value: float = 0.5) -> UnitResult:
    ids = range(index * 10, index * 10 + 10 - len(bad))
    values = [[value, float(i)] for i in ids]
    mark = [["abc"] * len(ids), [next(_micros)] * len(ids)]
    table = pa.table([list(ids), values, *mark], schema=SCHEMA)
    return UnitResult(Unit(f"{index:08}", "f", index * 10, 10), table, bad)
