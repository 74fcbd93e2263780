"""Rows of queries: a real PostgreSQL, SQLite, DuckDB."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import SinkRequest, Source, SourceRequest
from services.batch.engine import BatchEvent
from services.batch.job import BatchConfig, BatchReport, RunControl, local_executor, run_job
from services.batch.sinks import open_sink
from services.batch.sources import open_source
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
            return open_source(SourceRequest(f"{where}&table=people", 100))
        return open_source(SourceRequest(where, 100, {"query": query}))


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


def test_rows_come_in_the_order_of_the_key(database: Database) -> None:
    source = database.source()
    assert source.total_rows() == 250
    chunks = list(source.scan(["id", "score", "name"], ()))
    assert [(c.unit.start, c.unit.rows) for c in chunks] == [(0, 100), (100, 100), (200, 50)]
    found = pa.concat_tables([chunk.table for chunk in chunks])
    assert [tuple(row.values()) for row in found.to_pylist()] == ROWS
    again = list(source.scan(["name"], {chunks[0].unit.id, chunks[2].unit.id}))
    assert [chunk.unit for chunk in again] == [chunks[1].unit]
    assert again[0].table["name"].to_pylist() == [row[2] for row in ROWS[100:200]]


def test_a_query_with_a_percent_and_a_condition(database: Database) -> None:
    source = database.source("SELECT id, id % 7 AS rest FROM people WHERE name LIKE 'name 1%';")
    (chunk,) = source.scan(["rest"], ())
    expected = [row[0] % 7 for row in ROWS if str(row[2]).startswith("name 1")]
    assert chunk.table["rest"].to_pylist() == expected


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_added_rows_change_the_identity_and_stop_a_scan(database: Database) -> None:
    source = database.source()
    before = source.identity()
    database.add([(1000, 0.0, "new")])
    assert database.source().identity() != before
    with pytest.raises(MlctlError, match="changed since the start") as caught:
        list(source.scan(["id"], ()))
    assert caught.value.code is ErrorCode.JOB_CHANGED
    assert "geheim" not in str(before)
    assert "geheim" not in source.name


def swap(database: Database, removed: int, added: int) -> None:
    """Remove a row and add another: number, smallest and largest key of the rows stay."""
    database.connection.execute(f"DELETE FROM people WHERE id = {removed}")
    database.add([(added, 0.0, "new")])


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_query_source__rows_moved_between_scans__done_units_are_not_taken_for_others(
    database: Database,
) -> None:
    database.connection.execute("DELETE FROM people WHERE id = 220")
    database.add([(1000, 0.0, "last")])
    source = database.source()
    first, second, third = (chunk.unit.id for chunk in source.scan(["id"], ()))
    swap(database, 3, 220)  # each unit now begins one row later
    again = database.source()
    assert again.identity() == source.identity()
    for done in ({first}, {second}, {first, second}):
        with pytest.raises(MlctlError, match="rows were added or removed") as caught:
            list(again.scan(["id"], done))
        assert caught.value.code is ErrorCode.JOB_CHANGED
    swap(database, 220, 3)
    assert [chunk.unit.id for chunk in database.source().scan(["id"], {first, second})] == [third]
    swap(database, 210, 220)  # within the unit that is left
    (chunk,) = database.source().scan(["id"], {first, second})
    assert 220 in chunk.table["id"].to_pylist()


def test_query_source__rows_moved_between_runs__job_ends_without_success(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "in.db")
    connection.execute("CREATE TABLE people (id INTEGER, x_0, x_1, x_2, x_3)")
    rows = [(2 * row, *values) for row, values in enumerate(tables.inputs(150).tolist())]
    connection.executemany("INSERT INTO people VALUES (?,?,?,?,?)", rows)
    connection.commit()
    bundle, out = make_bundle(tmp_path / "tiny"), tmp_path / "out"
    location = f"sqlite://{tmp_path}/in.db?table=people&key=id"

    def score(control: RunControl) -> BatchReport:
        sink = open_sink(SinkRequest(str(out)))
        sink.commit_rows = 10
        wanted, source = BatchConfig(keep=("id",)), open_source(SourceRequest(location, 10))
        return run_job(bundle, "tiny", source, sink, wanted, local_executor(1), control)

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
    with pytest.raises(MlctlError, match="rows were added or removed") as caught:
        score(RunControl())
    assert caught.value.code is ErrorCode.JOB_CHANGED
    assert not (out / "_SUCCESS").exists()
    assert score(RunControl(restart=True)).totals.rows == 150
    assert tables.answers(out)["id"].to_pylist() == sorted({*range(0, 300, 2), 281} - {10})


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
@pytest.mark.parametrize("row", [(99, 0.0, "twice"), (None, 0.0, "null")])
def test_keys_that_do_not_tell_rows_apart_are_refused(
    database: Database, row: tuple[Any, ...]
) -> None:
    database.add([row])
    with pytest.raises(MlctlError, match="does not tell rows apart"):
        list(database.source().scan(["score"], ()))


def test_a_value_of_sqlite_that_is_not_of_its_columns_type_is_bad(tmp_path: Path) -> None:
    made = Database(sqlite3.connect(tmp_path / "in.db"), f"sqlite://{tmp_path}/in.db", "?")
    made.connection.execute("CREATE TABLE people (id INTEGER, score FLOAT, name TEXT)")
    # One among the first rows, which tell the type, and one after them.
    wrong = {7: "much", 30_000: "more"}
    made.add([(row, wrong.get(row, float(row)), "a") for row in range(30_001)])
    made.connection.close()
    chunks = list(made.source().scan(["score", "id"], ()))
    bad = [bad for chunk in chunks for bad in chunk.rejected]
    assert {each.reason for each in bad} == {"column 'score' is not double"}
    assert [each.values for each in bad] == [{"score": wrong[row], "id": row} for row in wrong]
    assert [each.row for each in bad] == list(wrong)
    assert sum(chunk.table.num_rows for chunk in chunks) == 29_999


@pytest.mark.parametrize(
    ("location", "options", "told"),
    [
        ("sqlite://in.db?key=id", {}, "needs a table or a query"),
        ("sqlite://in.db?table=a", {}, "needs a key"),
        ("postgresql://u:geheim@h/d?table=a", {}, r"postgresql://u@h/d needs a key"),
    ],
)
def test_what_is_missing_is_told(location: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(MlctlError, match=told):
        open_source(SourceRequest(location, 100, options))


def test_a_bad_query_and_a_bad_key_are_told(database: Database) -> None:
    for query, key in (("SELECT nothing FROM nowhere", "id"), ("SELECT id FROM people", "no")):
        with pytest.raises(MlctlError) as caught:
            database.source(query, key).identity()
        assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_server_that_is_away_is_told_without_the_password() -> None:
    location = "postgresql://u:geheim@/d?host=/nowhere&table=a&key=id"
    with pytest.raises(MlctlError, match="cannot be reached") as caught:
        open_source(SourceRequest(location, 100)).identity()
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
    assert "geheim" not in str(caught.value)
