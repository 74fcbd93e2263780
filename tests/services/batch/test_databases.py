"""Answers in tables of a real PostgreSQL, of SQLite and of DuckDB."""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.bundle.verify import verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import BatchEvent, BatchPhase, ErrorLimit, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Job, ScoredPiece, Unit
from tests.services.batch.conftest import Place
from tests.support import tables
from tests.support.bundles import make_bundle
from tests.support.postgres import PostgresServer
from tests.support.table_jobs import JOB, SCHEMA, commit, query, sink_at

pytestmark = pytest.mark.slow


def test_table__commit__answers_bad_rows_and_marker_come_together(place: Place) -> None:
    location = place(create="yes")
    columns = [[9], ["ä?%s\0"], ["f"], [9], ["poi\0son"], [None]]
    bad = pa.table(columns, schema=JOB.quarantine)
    with closing(sink_at(location)) as sink:
        assert sink.begin(JOB) == ({}, False)
        commit(sink, 0)
        answers = SCHEMA.empty_table()
        for _attempt in range(2):  # as after a commit whose confirmation was lost
            marker = sink.commit(Unit("bad", "f", 1), [ScoredPiece(answers, bad, 5)])
        assert (marker.rows, marker.bad, marker.skipped) == (0, 1, 5)
    with closing(sink_at(place())) as sink:
        markers, finished = sink.begin(JOB)
        assert (sorted(markers), finished) == (["00000000", "bad"], False)
        assert (markers["bad"].bad, markers["bad"].skipped) == (1, 5)
        sink.finish({"rows": 10})
        assert sink.begin(JOB)[1]
    ((unit, row, origin, reason),) = query(
        location, "SELECT unit, row, origin, reason FROM $T_mlctl_quarantine"
    )
    # PostgreSQL stores no text with a NUL character.
    assert (unit, row, origin, reason) == ("bad", 9, "f", "poison")
    ids = [row[0] for row in query(location, "SELECT id FROM $T ORDER BY id")]
    assert ids == [*range(10)]


def test_table__not_there__is_only_created_on_request(place: Place) -> None:
    sink = sink_at(place())
    with closing(sink), pytest.raises(MlctlError, match="does not exist") as caught:
        sink.begin(JOB)
    assert caught.value.hint is not None
    assert "CREATE TABLE" in caught.value.hint


def test_table__rows_with_the_same_key__replace_each_other(place: Place) -> None:
    location = place(create="yes", key="id")
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0, 1)
        commit(sink, 0, value=2.0, unit="2")
        with sink._db.transaction():  # rows of others make up for none of the job's
            sink._db.run(f"INSERT INTO {sink._table} (id) VALUES (1000)")
        with pytest.raises(MlctlError, match="has 20 rows of the job after 30 answers: the key id"):
            sink.finish({})
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(21, 21)]


def test_table__another_job__is_rejected_and_restart_removes_the_old_answers(
    place: Place,
) -> None:
    location, other = place(create="yes"), replace(JOB, fingerprint={"input": "b"})
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0)
    with closing(sink_at(location)) as sink:
        with pytest.raises(MlctlError, match="input was a, is b") as caught:
            sink.begin(other)
        assert caught.value.code is ErrorCode.JOB_CHANGED
        assert sink.begin(other, restart=True) == ({}, False)
    assert query(location, "SELECT count(*) FROM $T") == [(0,)]


@pytest.mark.parametrize("place", ["postgresql", "sqlite"], indirect=True)
def test_table__two_runs_at_once__each_unit_is_committed_once(place: Place) -> None:
    location = place(create="yes")
    first, second = sink_at(location), sink_at(location)
    with closing(first), closing(second), ThreadPoolExecutor(2) as pool:
        begun = list(pool.map(lambda sink: sink.begin(JOB), (first, second)))
        assert begun == [({}, False)] * 2
        list(pool.map(lambda sink: commit(sink, *range(8)), (first, second)))
        assert len(second.begin(JOB)[0]) == 8
        second.finish({})
        first.finish({})
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(80, 80)]


@pytest.mark.parametrize("place", ["postgresql", "sqlite"], indirect=True)
def test_table__another_run_restarts_the_job__first_one_ends_without_a_trace(place: Place) -> None:
    location = place(create="yes")
    first, second = sink_at(location), sink_at(location)
    with closing(first), closing(second):
        first.begin(JOB)
        commit(first, 0)
        second.begin(replace(JOB, fingerprint={"input": "b"}), restart=True)
        with pytest.raises(MlctlError, match="another run") as caught:
            commit(first, 1)
        assert caught.value.code is ErrorCode.JOB_CHANGED
        with pytest.raises(MlctlError, match="another run"):
            first.finish({})
        commit(second, 2)
        second.finish({})
    assert query(location, "SELECT min(id), count(*) FROM $T") == [(20, 10)]


def test_duckdb__file_open_in_another_process__is_rejected(tmp_path: Path) -> None:
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path / "out.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(MlctlError, match="another process") as caught:
            sink_at(f"duckdb://{tmp_path}/out.db?table=scores").begin(JOB)
        other.communicate(b"\n")
    assert caught.value.code is ErrorCode.JOB_RUNNING


def test_duckdb__full_disk__file_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = f"duckdb://{tmp_path}/out.db?table=scores&create=yes"

    def refuse(_self: object, _table: str, _rows: pa.Table) -> None:
        raise duckdb.TransactionException("Failed to commit: No space left on device")

    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        with monkeypatch.context() as patch:
            patch.setattr("mlctl.services.batch.databases.duckdb.DuckDb.load", refuse)
            with pytest.raises(OSError, match="no space left") as caught:
                commit(sink, 0)
        assert caught.value.errno == errno.ENOSPC
        commit(sink, 0)
    assert query(location, "SELECT count(*) FROM $T") == [(10,)]


def test_sink__values_of_each_type__arrive_as_they_are(place: Place) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
    table = pa.table(
        {
            "a b": pa.array(["", None, 'x,"y"\n\\N']),
            "n": pa.array([1, None, 2**62], pa.int64()),
            "f": pa.array([float("nan"), float("-inf"), 1.5], pa.float32()),
            "b": pa.array([True, False, None]),
            "raw": pa.array([b"\x00\xff", None, b""]),
            "l": pa.array([[1.5, None], None, []], pa.list_(pa.float64())),
            "w": pa.array([["a"], None, ["b", "c"]]),
            "at": pa.array([at, None, at], pa.timestamp("us", "UTC")),
            "mlctl_digest": pa.array(["abc"] * 3),
        }
    )
    location = place(create="yes")
    with closing(sink_at(location)) as sink:
        sink.begin(Job({"i": "a"}, table.schema, JOB.quarantine))
        sink.commit(Unit("0", "f", 3), [ScoredPiece(table)])
    rows = query(location, 'SELECT "a b", n, f, b, raw, l, w FROM $T')
    assert [row[0] for row in rows] == ["", None, 'x,"y"\n\\N']
    assert [row[1] for row in rows] == [1, None, 2**62]
    assert [row[3] for row in rows] == [True, False, None]
    assert [row[4] for row in rows] == [b"\x00\xff", None, b""]
    lists = ["[1.5, null]", None, "[]"] if "sqlite" in location else [[1.5, None], None, []]
    assert [row[5] for row in rows] == lists
    words = ['["a"]', None, '["b", "c"]'] if "sqlite" in location else [["a"], None, ["b", "c"]]
    assert [row[6] for row in rows] == words


def test_postgres__server_lost__next_commit_loses_nothing(server: PostgresServer) -> None:
    location = f"{server.url}&table=lost&create=yes&key=id"
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0)
        sessions = query(location, "SELECT pid, application_name FROM pg_stat_activity")
        for pid in [pid for pid, name in sessions if name == "mlctl"]:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MlctlError, match="cannot be reached") as caught:
            commit(sink, 1)
        assert caught.value.code is ErrorCode.SINK_UNAVAILABLE
        assert "geheim" not in str(caught.value)
        server.crash()
        with pytest.raises(MlctlError, match="cannot be reached"):
            commit(sink, 1)
        server.start()
        commit(sink, 1)
        assert len(sink.begin(JOB)[0]) == 2
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(20, 20)]


def test_postgres__session_killed_before_its_commit__job_pauses(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "tiny")
    tables.write_rows(tmp_path / "in.parquet", 2_000)
    location = f"{server.url}&table=cut&create=yes"
    sink, loads = sink_at(location), itertools.count()
    load = sink._db.load

    def load_and_die(table: str, rows: pa.Table) -> None:
        load(table, rows)
        # The answers of the second commit, with all its rows sent.
        if table == "cut" and next(loads) == 1:
            ((pid,),) = sink._db.run("SELECT pg_backend_pid()")
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(sink._db, "load", load_and_die)
    events: list[BatchEvent] = []
    tables.score(verify(tmp_path / "tiny"), tmp_path / "in.parquet", sink, events=events)
    paused = [event.detail for event in events if event.phase is BatchPhase.PAUSED]
    assert paused
    assert "cannot be reached" in paused[0]
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(2_000, 2_000)]


def test_table__text_with_nul__is_a_bad_row_where_it_cannot_be_stored(
    place: Place, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "tiny")
    rows = tables.table(tables.inputs(100))
    names = ["a\0b" if row == 7 else f"n{row}" for row in range(100)]
    nested = [{"t": ["a\0b" if row == 8 else "a", None]} for row in range(100)]
    rows = rows.append_column("name", pa.array(names).dictionary_encode())
    parquet.write_table(rows.append_column("more", pa.array(nested)), tmp_path / "in.parquet")
    config = BatchConfig(keep=("id", "name", "more"), unit_rows=40)
    source = open_source(str(tmp_path / "in.parquet"), 40)
    location = place(create="yes")
    sink = sink_at(location)
    run_job(bundle, source, sink, config, local_executor(2), RunControl(limit=ErrorLimit(count=2)))
    bad = {7, 8} if sink.forbids_nul else set()
    held = query(location, "SELECT row, reason FROM $T_mlctl_quarantine")
    assert {row for row, _reason in held} == bad
    assert all("has a NUL character" in reason for _row, reason in held)
    ids = {row[0] for row in query(location, "SELECT id FROM $T")}
    assert ids == set(range(100)) - bad


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ("", "'' is not a table name"),
        ("?table=a;b", "is not a table name"),
        ("?table=a&create=maybe", "yes or no"),
    ],
)
def test_table_location__invalid__is_rejected(parameters: str, told: str) -> None:
    with pytest.raises(MlctlError, match=told):
        open_sink(f"postgresql://host/db{parameters}")


def test_postgres__columns_of_other_types_than_the_answers__values_convert_as_text(
    server: PostgresServer,
) -> None:
    location = f"{server.url}&table=typed.answers&key=id"
    for statement in (
        "CREATE SCHEMA typed",
        "CREATE TYPE typed.mood AS ENUM ('sad', 'ok')",
        (
            "CREATE TABLE typed.answers (id numeric PRIMARY KEY, mood typed.mood, who uuid, "
            "more jsonb, name varchar(5), y float8[], d numeric(6, 2), blob bytea, at timestamptz, "
            "big numeric, mlctl_digest text, mlctl_unit text)"
        ),
    ):
        query(location, statement)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    who = "7c09cd18-e79c-4232-8357-b07ed4978732"
    columns: dict[str, pa.Array] = {
        "id": pa.array([1, 2]),
        "mood": pa.array(["ok", None]).dictionary_encode(),
        "who": pa.array([who, None]),
        "more": pa.array([{"a": [1.5]}, None]),
        "name": pa.array(["näme", None]),
        "y": pa.array([[0.1, None], None], pa.list_(pa.float32(), 2)),
        "d": pa.array([1.25, None], pa.float32()),
        "blob": pa.array([b"\0\xff", None]),
        "at": pa.array([at, None], pa.timestamp("us", "Europe/Berlin")),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "mlctl_digest": pa.array(["abc", "abc"]).dictionary_encode(),
    }
    rows = pa.table(columns)
    job = replace(JOB, schema=rows.schema)
    with closing(sink_at(location)) as sink:
        sink.begin(job)
        sink.commit(Unit("0", "f", 2), [ScoredPiece(rows)])
        long = rows.set_column(4, "name", pa.array(["too long", None]))
        with pytest.raises(MlctlError, match="value too long"):
            sink.commit(Unit("1", "f", 2), [ScoredPiece(long)])
        sink.finish({})
    ((*found, _digest, _unit), empty) = query(location, "SELECT * FROM $T ORDER BY id")
    expected = [1, "ok", UUID(who), {"a": [1.5]}, "näme", [0.1, None]]
    assert found == [*expected, Decimal("1.25"), b"\0\xff", at, 2**64 - 1]
    assert empty[1:10] == (None,) * 9


def test_postgres__a_table_with_every_type__is_read_with_its_values(
    server: PostgresServer,
) -> None:
    location = f"{server.url}&table=kinds&key=id"
    query(
        location,
        "CREATE TABLE $T AS SELECT 1.5::numeric AS id, 'NaN'::numeric AS n, "
        "'{1.5,NULL}'::numeric[] AS ns, "
        "'7c09cd18-e79c-4232-8357-b07ed4978732'::uuid AS who, '{\"a\": 1}'::jsonb AS j, "
        "'1.2.3.4'::inet AS ip, '2026-01-02 03:04:05.678901+02'::timestamptz AS at, "
        "'\\x00ff'::bytea AS b, 'x''y'::text AS t, NULL::float4 AS none, '{a,NULL}'::text[] AS ts, "
        "'1 day'::interval AS i",
    )
    source = open_source(location, 100)
    columns = source.schema.names
    (unit,) = source.plan(columns, None).units
    ((row,),) = [piece.table.to_pylist() for piece in source.read(unit, columns, 10)]
    assert math.isnan(row.pop("n"))
    assert row == {
        "id": 1.5,
        "ns": [1.5, None],
        "who": "7c09cd18-e79c-4232-8357-b07ed4978732",
        "j": '{"a": 1}',
        "ip": "1.2.3.4/32",
        "at": dt.datetime(2026, 1, 2, 1, 4, 5, 678901, dt.UTC),
        "b": b"\0\xff",
        "t": "x'y",
        "none": None,
        "ts": ["a", None],
        "i": "1 day",
    }
