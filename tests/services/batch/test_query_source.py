"""Rows of queries: a real PostgreSQL, SQLite, DuckDB."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig, BatchReport, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import BatchEvent, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Source
from tests.support import tables
from tests.support.bundles import make_bundle

pytestmark = pytest.mark.slow

ROWS = [(row, row / 4, f"name {row}" if row % 3 else None) for row in range(250)]


class Database:
    """A database to write to, and the URL to read from it."""

    def __init__(self, connection: Any, url: str, mark: str) -> None:
        self.connection = connection
        self.url = url
        self.mark = mark

    def fill(self, rows: list[tuple[Any, ...]] = ROWS) -> None:
        self.connection.execute("DROP TABLE IF EXISTS people")
        self.connection.execute("CREATE TABLE people (id INTEGER, score FLOAT, name TEXT)")
        self.add(rows)

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        marks = ",".join([self.mark] * 3)
        cursor = self.connection.cursor()
        cursor.executemany(f"INSERT INTO people VALUES ({marks})", rows)
        self.connection.commit()

    def source(self, query: str = "", key: str = "id") -> Source:
        where = self.url + ("&" if "?" in self.url else "?") + f"key={key}"
        if not query:
            return open_source(f"{where}&table=people", 100)
        return open_source(where, 100, {"query": query})


@pytest.fixture(params=["postgresql", "sqlite", "duckdb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "in.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("server").url
        made = Database(psycopg.connect(url, autocommit=True), url, "%s")
    elif request.param == "sqlite":
        made = Database(sqlite3.connect(path), f"sqlite://{path}", "?")
    else:
        made = Database(duckdb.connect(path), f"duckdb://{path}", "?")
    made.fill(ROWS[::-1])
    if request.param == "duckdb":
        made.connection.close()
    yield made
    made.connection.close()


def read(source: Source, columns: list[str], skip: int = 0) -> list[dict[str, Any]]:
    """Read all units but the first `skip`."""
    units = source.plan(columns, None).units[skip:]
    pieces = [piece for unit in units for piece in source.read(unit, columns, 40)]
    return [row for piece in pieces for row in piece.table.to_pylist()]


def test_query_source__units__are_ranges_of_the_key(database: Database) -> None:
    source = database.source()
    assert [unit.rows for unit in source.plan(["id"], None).units] == [100, 100, 50]
    found = read(source, ["id", "score", "name"])
    assert [tuple(row.values()) for row in found] == ROWS
    assert [row["name"] for row in read(source, ["name"], 1)] == [row[2] for row in ROWS[100:]]


def test_query_source__query_with_percent_signs__is_run_as_written(database: Database) -> None:
    source = database.source("SELECT id, id % 7 AS rest FROM people WHERE name LIKE 'name 1%';")
    expected = [row[0] % 7 for row in ROWS if str(row[2]).startswith("name 1")]
    assert [row["rest"] for row in read(source, ["rest"])] == expected


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_query_source__added_rows__change_the_identity_and_stop_a_read(database: Database) -> None:
    source = database.source()
    before = source.identity()
    database.add([(1000, 0.0, "new")])
    assert database.source().identity() != before
    with pytest.raises(MlctlError, match="changed since the start") as caught:
        read(source, ["id"])
    assert caught.value.code is ErrorCode.JOB_CHANGED
    assert "geheim" not in str(before)
    assert "geheim" not in source.name


def swap(database: Database, removed: int, added: int) -> None:
    """Remove a row and add another: number, smallest and largest key of the rows stay."""
    database.connection.execute(f"DELETE FROM people WHERE id = {removed}")
    database.add([(added, 0.0, "new")])


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_query_source__rows_moved_between_runs__identity_changes(database: Database) -> None:
    database.connection.execute("DELETE FROM people WHERE id = 220")
    database.add([(1000, 0.0, "last")])
    before = database.source().identity()
    swap(database, 3, 220)  # the second and third unit now begin one row later
    assert database.source().identity() != before
    swap(database, 220, 3)
    assert database.source().identity() == before


def test_query_source__rows_moved_between_runs__job_ends_without_success(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "in.db")
    connection.execute("CREATE TABLE people (id INTEGER, x_0, x_1, x_2, x_3)")
    rows = [(2 * row, *values) for row, values in enumerate(tables.inputs(150).tolist())]
    connection.executemany("INSERT INTO people VALUES (?,?,?,?,?)", rows)
    connection.commit()
    bundle, out = make_bundle(tmp_path / "tiny"), tmp_path / "out"
    location = f"sqlite://{tmp_path}/in.db?table=people&key=id"

    def score(control: RunControl) -> BatchReport:
        sink = open_sink(str(out))
        config, source = BatchConfig(keep=("id",)), open_source(location, 10)
        return run_job(bundle, source, sink, config, local_executor(1), control)

    def stop_after_ten_units(event: BatchEvent) -> None:
        if event.totals.units == 10:
            stopped.stop.set()

    stopped = RunControl(watch=stop_after_ten_units)
    with pytest.raises(MlctlError, match="stopped after"):
        score(stopped)
    connection.execute("DELETE FROM people WHERE id = 10")
    connection.execute("INSERT INTO people SELECT 281, x_0, x_1, x_2, x_3 FROM people WHERE id = 0")
    connection.commit()
    connection.close()
    with pytest.raises(MlctlError, match="input ranges was") as caught:
        score(RunControl())
    assert caught.value.code is ErrorCode.JOB_CHANGED
    assert not (out / "_SUCCESS").exists()
    assert score(RunControl(restart=True)).totals.rows == 150
    assert tables.answers(out)["id"].to_pylist() == sorted({*range(0, 300, 2), 281} - {10})


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
@pytest.mark.parametrize("row", [(99, 0.0, "twice"), (None, 0.0, "null")])
def test_query_source__key_not_unique_or_null__is_rejected(
    database: Database, row: tuple[Any, ...]
) -> None:
    database.add([row])
    with pytest.raises(MlctlError, match="is not unique"):
        database.source().plan(["score"], None)


def test_query_source__sqlite_value_of_another_type__is_a_bad_row(tmp_path: Path) -> None:
    made = Database(sqlite3.connect(tmp_path / "in.db"), f"sqlite://{tmp_path}/in.db", "?")
    made.connection.execute("CREATE TABLE people (id INTEGER, score FLOAT, name TEXT)")
    # One among the first rows, which tell the type, and one after them.
    wrong = {7: "much", 30_000: "more"}
    made.add([(row, wrong.get(row, float(row)), "a") for row in range(30_001)])
    made.connection.close()
    source = made.source()
    columns = ["score", "id"]
    units = source.plan(columns, None).units
    pieces = [piece for unit in units for piece in source.read(unit, columns, 1000)]
    bad = [bad for piece in pieces for bad in piece.unreadable]
    assert {each.reason for each in bad} == {"column 'score' is not double"}
    assert [json.loads(each.text) for each in bad] == [
        {"score": wrong[row], "id": row} for row in wrong
    ]
    assert [each.row for each in bad] == list(wrong)
    assert sum(piece.table.num_rows for piece in pieces) == 29_999


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        ("sqlite://in.db?key=id", {}, "needs a table or a query"),
        ("sqlite://in.db?table=a", {}, "needs a key"),
        ("postgresql://u:geheim@h/d?table=a", {}, r"postgresql://u@h/d needs a key"),
    ],
)
def test_query_source__no_table_or_key__is_rejected(
    location: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(MlctlError, match=message):
        open_source(location, 100, options)


def test_query_source__bad_query_or_key__is_rejected(database: Database) -> None:
    for query, key in (("SELECT nothing FROM nowhere", "id"), ("SELECT id FROM people", "no")):
        with pytest.raises(MlctlError) as caught:
            database.source(query, key).identity()
        assert caught.value.code is ErrorCode.INVALID_INPUT


def test_query_source__server_unavailable__message_has_no_password() -> None:
    location = "postgresql://u:geheim@/d?host=/nowhere&table=a&key=id"
    with pytest.raises(MlctlError, match="cannot be reached") as caught:
        open_source(location, 100).identity()
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
    assert "geheim" not in str(caught.value)
