"""SIGKILL at random moments: each row is answered once, the quarantine is exact."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.verify import verify
from services.batch.base import SinkRequest
from services.batch.job import BatchConfig
from services.batch.sinks import open_sink as open_any_sink
from services.batch.sinks.parquet import open_sink
from tests.support import tables
from tests.support.batch_kill import Killer
from tests.support.postgres import PostgresServer
from tests.support.transforms import make_text_bundle
from tests.support.wait import PATIENCE_SECONDS

ROWS = 2_500
UNIT = 100
POISONED = frozenset(np.random.default_rng(7).choice(ROWS, 37, replace=False).tolist())
KILLS = 30
TABLE_KILLS = 10


def write_input(folder: Path) -> None:
    """Texts for the token model; the transform raises for one without words."""
    make_text_bundle(folder / "bundle")
    texts = ["" if row in POISONED else "one two" for row in range(ROWS)]
    parquet.write_table(
        pa.table({"id": range(ROWS), "text": texts}), folder / "in.parquet", row_group_size=900
    )


def run_parquet(folder: Path) -> None:
    """The job of these tests; small commits, so that there are many moments to be killed at."""
    sink = open_sink(SinkRequest(str(folder / "out")))
    sink.commit_rows = UNIT
    wanted = BatchConfig(keep=("id",), unit_rows=UNIT)
    tables.score(
        verify(folder / "bundle"),
        folder / "in.parquet",
        sink,
        wanted=wanted,
        limit=str(len(POISONED)),
    )


def run_postgres(folder: Path) -> None:
    """The same job into a table, whose location is in a file of the folder."""
    sink = open_any_sink(SinkRequest((folder / "place").read_text()))
    sink.commit_rows = UNIT
    wanted = BatchConfig(keep=("id",), unit_rows=UNIT)
    tables.score(
        verify(folder / "bundle"),
        folder / "in.parquet",
        sink,
        wanted=wanted,
        limit=str(len(POISONED)),
    )


def check_table(url: str, table: str) -> None:
    with psycopg.connect(url) as connection:
        ids = [row[0] for row in connection.execute(f"SELECT id FROM {table}")]
        held = connection.execute(
            f"SELECT row, (held::json->>'id')::int, reason FROM {table}_mlctl_quarantine ORDER BY 1"
        ).fetchall()
        done = connection.execute(
            f"SELECT 1 FROM {table}_mlctl_facts WHERE name = 'finished'"
        ).fetchall()
    assert len(ids) == len(set(ids)), "a row was answered twice"
    assert set(ids) == set(range(ROWS)) - POISONED, "a row was lost"
    assert [row for row, _id, _reason in held] == sorted(POISONED)
    assert all(row == number and "no words" in reason for row, number, reason in held)
    assert done == [(1,)]


def check_complete(folder: Path) -> None:
    found = parquet.read_table(folder / "out", partitioning=None)
    ids = found["id"].to_pylist()
    assert len(ids) == len(set(ids)), "a row was answered twice"
    assert set(ids) == set(range(ROWS)) - POISONED, "a row was lost"
    assert set(found["total"].to_pylist()) == {1.5}
    with sqlite3.connect(folder / "out" / "_mlctl" / "ledger.db") as ledger:
        rows = ledger.execute("SELECT row, json_extract(held, '$.id'), reason FROM quarantine")
        bad = rows.fetchall()
    ledger.close()
    assert [row for row, _id, _reason in bad] == sorted(POISONED)
    assert all(row == held and "no words" in reason for row, held, reason in bad)
    assert (folder / "out" / "_SUCCESS").is_file()


@pytest.mark.slow
def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    killer = Killer(20_000, __name__)
    write_input(tmp_path / "calm")
    longest = killer.undisturbed(run_parquet, tmp_path / "calm")
    check_complete(tmp_path / "calm")
    jobs = 0
    while killer.kills < KILLS or jobs < 3:
        folder = tmp_path / f"job{jobs}"
        write_input(folder)
        killer.harass(run_parquet, folder, 0.25 * longest, most=10)
        check_complete(folder)
        jobs += 1


@pytest.mark.slow
def test_kills_lose_and_double_nothing_in_a_table(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        killer = Killer(30_000, __name__)
        longest = PATIENCE_SECONDS
        jobs = 0
        while killer.kills < TABLE_KILLS or jobs < 3:
            folder, table = tmp_path / f"job{jobs}", f"scores{jobs}"
            write_input(folder)
            # Without a key: a unit that came twice would be seen.
            (folder / "place").write_text(f"{server.url}&table={table}&create=yes")
            if jobs == 0:
                longest = killer.undisturbed(run_postgres, folder)
            else:
                killer.harass(run_postgres, folder, 0.4 * longest, most=7)
            check_table(server.url, table)
            jobs += 1
    finally:
        server.close()
