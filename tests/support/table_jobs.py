"""A job whose answers go to a table: its units, and the rows that are in the table."""

from __future__ import annotations

import sqlite3
from typing import Any

import duckdb
import psycopg
import pyarrow as pa

from mlctl.services.batch.answers import quarantine_schema
from mlctl.services.batch.databases.sink import DatabaseSink
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.units import Job, ScoredPiece, Unit

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("y", pa.list_(pa.float32(), 2)),
        ("mlctl_digest", pa.dictionary(pa.int32(), pa.string())),
    ]
)
QUARANTINE = quarantine_schema(
    pa.schema([("id", pa.int64()), ("text", pa.string())]), ["id", "text"]
)
JOB = Job({"input": "a"}, SCHEMA, QUARANTINE)


def sink_at(location: str) -> DatabaseSink:
    sink = open_sink(location)
    assert isinstance(sink, DatabaseSink)
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


def commit(sink: DatabaseSink, *indices: int, value: float = 0.5, unit: str = "") -> None:
    """Commit the units `indices` of ten rows, each under its own id or as `unit`."""
    for index in indices:
        ids = range(index * 10, index * 10 + 10)
        columns = [list(ids), [[value, float(i)] for i in ids], ["abc"] * len(ids)]
        pieces = [ScoredPiece(pa.table(columns, schema=SCHEMA))]
        sink.commit(Unit(unit or f"{index:08}", "f", 10), pieces)
