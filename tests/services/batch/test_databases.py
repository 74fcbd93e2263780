"""Answers in tables of a real PostgreSQL, of SQLite and of DuckDB."""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import verify
from services.batch.base import (
    BadRow,
    BatchTotals,
    Job,
    SinkRequest,
    SourceRequest,
    Unit,
    UnitResult,
)
from services.batch.engine import BatchEvent, BatchPhase
from services.batch.job import BatchConfig, RunControl, local_executor, run_job
from services.batch.limits import ErrorLimit
from services.batch.sinks import open_sink
from services.batch.sources import open_source
from tests.services.batch.conftest import Place
from tests.support import tables
from tests.support.bundles import make_bundle
from tests.support.postgres import PostgresServer
from tests.support.table_jobs import JOB, SCHEMA, query, result, sink_at

pytestmark = pytest.mark.slow


def test_answers_bad_rows_and_ledger_come_together(place: Place) -> None:
    # PostgreSQL takes no text with a zero in it.
    bad = (BadRow(9, "poi\0son", {"id": 9, "text": "ä?%s\0"}),)
    location = place(create="yes")
    with sink_at(location) as sink:
        assert sink.begin(JOB).totals == BatchTotals()
        sink.commit([result(0, bad)])
        sink.commit([result(0, bad), result(1)])  # as after a commit whose word was lost
    with sink_at(place()) as sink:
        progress = sink.begin(JOB)
        assert progress.done == {"00000000", "00000001"}
        assert progress.totals == BatchTotals(units=2, rows=19, bad=1)
        (held,) = sink.quarantined()
        assert (held.unit, held.origin) == ("00000000", "f")
        assert held.bad == replace(bad[0], reason="poison")
        mended = replace(result(5), resolved=(("00000000", 9),))
        sink.commit([mended])
        assert not list(sink.quarantined())
        sink.finish({"rows": 29})
    with sink_at(place()) as sink:
        job, progress = sink.stored()
        assert (job.fingerprint, job.schema, progress.finished) == ({"input": "a"}, SCHEMA, True)
    ids = [row[0] for row in query(location, "SELECT id FROM $T ORDER BY id")]
    assert ids == [*range(9), *range(10, 20), *range(50, 60)]


def test_a_table_is_only_made_if_asked(place: Place) -> None:
    with sink_at(place()) as sink, pytest.raises(MlctlError, match="does not exist") as caught:
        sink.begin(JOB)
    assert caught.value.hint is not None
    assert "CREATE TABLE" in caught.value.hint
    with sink_at(place()) as sink, pytest.raises(MlctlError, match="holds no batch job"):
        sink.stored()


def test_rows_with_the_same_key_replace_each_other(place: Place) -> None:
    location = place(create="yes", key="id")
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0), result(1)])
        sink.commit([replace(result(0, value=2.0), unit=Unit("2", "g", 0, 10))])
        with pytest.raises(MlctlError, match=r"the key id is not unique .* 10 comes twice"):
            sink.commit([replace(result(1), unit=Unit(f"{i}", "g", 0, 10)) for i in (3, 4)])
        assert len(sink.stored()[1].done) == 3
        with sink._db.transaction():  # rows of others make up for none of the job's
            sink._db.run(f"INSERT INTO {sink._table} (id) VALUES (1000)")
        with pytest.raises(MlctlError, match="has 20 rows of the job after 30 answers: the key id"):
            sink.finish({})
        assert not sink.stored()[1].finished
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(21, 21)]


def test_another_job_is_refused_and_restart_removes_the_old_answers(place: Place) -> None:
    location, other = place(create="yes"), replace(JOB, fingerprint={"input": "b"})
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
    with sink_at(location) as sink:
        with pytest.raises(MlctlError, match="input was a, is b") as caught:
            sink.begin(other)
        assert caught.value.code is ErrorCode.JOB_CHANGED
        assert sink.begin(other, restart=True).totals == BatchTotals()
    assert query(location, "SELECT count(*) FROM $T") == [(0,)]


def test_table__commit_of_more_units_than_a_database_has_parameters__works(place: Place) -> None:
    ids = [f"{index:08}" for index in range(70_000)]
    with sink_at(place(create="yes")) as sink:
        sink.begin(JOB)
        sink.commit([result(0), result(69_999)])
        with sink._db.transaction():
            assert sink._known(ids) == {"00000000", "00069999"}


@pytest.mark.parametrize("place", ["postgresql", "sqlite"], indirect=True)
def test_one_runner_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.batch.databases.postgres._LOCK_SECONDS", 0.2)
    location = place(create="yes")
    with sink_at(location), pytest.raises(MlctlError, match="another process") as caught:
        sink_at(location).__enter__()
    assert caught.value.code is ErrorCode.JOB_RUNNING
    with sink_at(location) as sink:
        assert sink.begin(JOB).totals == BatchTotals()


def test_a_file_of_duckdb_that_another_process_has_open_is_told(tmp_path: Path) -> None:
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path / "out.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(MlctlError, match="another process") as caught:
            sink_at(f"duckdb://{tmp_path}/out.db?table=scores").__enter__()
        other.communicate(b"\n")
    assert caught.value.code is ErrorCode.JOB_RUNNING


def test_a_file_of_duckdb_on_a_full_disk_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = f"duckdb://{tmp_path}/out.db?table=scores&create=yes"

    def refuse(_self: object, _table: str, _rows: pa.Table) -> None:
        raise duckdb.TransactionException("Failed to commit: No space left on device")

    with sink_at(location) as sink:
        sink.begin(JOB)
        with monkeypatch.context() as patch:
            patch.setattr("services.batch.databases.duckdb.DuckDb.load", refuse)
            with pytest.raises(OSError, match="no space left") as caught:
                sink.commit([result(0)])
        assert caught.value.errno == errno.ENOSPC
        sink.commit([result(0)])
    assert query(location, "SELECT count(*) FROM $T") == [(10,)]


def test_all_kinds_of_values_arrive(place: Place) -> None:
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
            "mlctl_scored_at": pa.array([at] * 3, pa.timestamp("us", "UTC")),
        }
    )
    location = place(create="yes")
    with sink_at(location) as sink:
        sink.begin(Job({"i": "a"}, table.schema, table.schema))
        sink.commit([UnitResult(Unit("0", "f", 0, 3), table)])
    rows = query(location, 'SELECT "a b", n, f, b, raw, l, w FROM $T')
    assert [row[0] for row in rows] == ["", None, 'x,"y"\n\\N']
    assert [row[1] for row in rows] == [1, None, 2**62]
    assert [row[3] for row in rows] == [True, False, None]
    assert [row[4] for row in rows] == [b"\x00\xff", None, b""]
    lists = ["[1.5, null]", None, "[]"] if "sqlite" in location else [[1.5, None], None, []]
    assert [row[5] for row in rows] == lists
    words = ['["a"]', None, '["b", "c"]'] if "sqlite" in location else [["a"], None, ["b", "c"]]
    assert [row[6] for row in rows] == words


def test_a_lost_server_is_waited_for_and_loses_nothing(server: PostgresServer) -> None:
    location = f"{server.url}&table=lost&create=yes&key=id"
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
        sessions = query(location, "SELECT pid, application_name FROM pg_stat_activity")
        for pid in [pid for pid, name in sessions if name == "mlctl batch"]:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MlctlError, match="cannot be reached") as caught:
            sink.commit([result(1)])
        assert caught.value.code is ErrorCode.SINK_UNAVAILABLE
        assert "geheim" not in str(caught.value)
        server.crash()
        with pytest.raises(MlctlError, match="cannot be reached"):
            sink.commit([result(1)])
        server.start()
        sink.commit([result(1)])
        assert sink.stored()[1].totals == BatchTotals(units=2, rows=20)
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(20, 20)]


def test_a_session_that_dies_before_its_commit_pauses_the_job(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "tiny")
    tables.write_rows(tmp_path / "in.parquet", 2_000)
    location = f"{server.url}&table=cut&create=yes"
    sink, loads = sink_at(location), itertools.count()
    sink.commit_rows = 500
    load = sink._db.load

    def load_and_die(table: str, rows: pa.Table) -> None:
        load(table, rows)
        if next(loads) == 1:  # the second commit, with all its rows sent
            ((pid,),) = sink._db.run("SELECT pg_backend_pid()")
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(sink._db, "load", load_and_die)
    events: list[BatchEvent] = []
    tables.score(verify(tmp_path / "tiny"), tmp_path / "in.parquet", sink, events=events)
    paused = [event.detail for event in events if event.phase is BatchPhase.PAUSED]
    assert paused
    assert "cannot be reached" in paused[0]
    assert query(location, "SELECT count(*), count(DISTINCT id) FROM $T") == [(2_000, 2_000)]


def test_text_that_the_database_cannot_hold_makes_its_row_a_bad_one(
    place: Place, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "tiny")
    rows = tables.table(tables.inputs(100))
    names = ["a\0b" if row == 7 else f"n{row}" for row in range(100)]
    nested = [{"t": ["a\0b" if row == 8 else "a", None]} for row in range(100)]
    rows = rows.append_column("name", pa.array(names).dictionary_encode())
    parquet.write_table(rows.append_column("more", pa.array(nested)), tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id", "name", "more"), unit_rows=40)
    source = open_source(SourceRequest(str(tmp_path / "in.parquet"), 40))
    location = place(create="yes")
    control = RunControl(limit=ErrorLimit(count=2))
    sink = sink_at(location)
    run_job(bundle, "tiny", source, sink, wanted, local_executor(2), control)
    bad = {7, 8} if sink.forbids_nul else set()
    with sink_at(place()) as again:
        assert {held.bad.row for held in again.quarantined()} == bad
        for held in again.quarantined():
            assert "has a NUL character" in held.bad.reason
            assert "\0" in as_text(held.bad.values)
    ids = {row[0] for row in query(location, "SELECT id FROM $T")}
    assert ids == set(range(100)) - bad


def as_text(values: object) -> str:
    """All the text in nested values."""
    if isinstance(values, Mapping):
        values = list(values.values())
    return "".join(map(as_text, values)) if isinstance(values, list) else str(values)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [("", "'' is no name"), ("?table=a;b", "is no name"), ("?table=a&create=maybe", "yes or no")],
)
def test_a_place_that_makes_no_sense_is_told(parameters: str, told: str) -> None:
    with pytest.raises(MlctlError, match=told):
        open_sink(SinkRequest(f"postgresql://host/db{parameters}"))
