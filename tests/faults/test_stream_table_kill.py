"""SIGKILL while a stream's answers go to PostgreSQL: one row for each message, none lost."""

from __future__ import annotations

import threading
from pathlib import Path

import adbc_driver_postgresql.dbapi
import pytest

from mlctl.bundle.verify import verify
from mlctl.services.stream.base import ConnectionRequest, Outgoing, StreamUrl
from mlctl.services.stream.batching import BatchGoals
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.start import StreamConfig, run_stream
from mlctl.services.stream.transports import sqlite, table
from tests.services.stream.contract import read, send
from tests.support.batch_kill import Killer
from tests.support.bundles import make_bundle
from tests.support.postgres import PostgresServer
from tests.support.table_jobs import query
from tests.support.wait import PATIENCE_SECONDS

# Imported for the jobs: they are forked from a process that has loaded this module.
_ = (adbc_driver_postgresql.dbapi, sqlite, table)
MESSAGES = 300
KILLS = 12


def _source(folder: Path) -> StreamUrl:
    return StreamUrl.parse(f"sqlite://{folder}/events.db?lease=0.3#in")


def answer_all(folder: Path) -> None:
    """Answer the messages of a log into the table that is named in a file of the folder."""
    source, target = _source(folder), StreamUrl.parse((folder / "target").read_text())
    config = StreamConfig(
        ConnectionRequest(source, "g", target, source.with_topic("dead")),
        PayloadRequest(keep=("id",)),
        RunSettings(BatchGoals(messages=8), dead_share=1.0, until_empty=True),
    )
    run_stream(verify(folder / "bundle"), config, lambda _event: None, threading.Event())


def check(folder: Path) -> None:
    url = (folder / "target").read_text()
    ids = [row[0] for row in query(url, "SELECT id FROM $T ORDER BY id")]
    assert ids == [n for n in range(MESSAGES) if n % 50]
    letters = [message.value for message in read(_source(folder).with_topic("dead"))]
    assert set(letters) == {_value(n) for n in range(0, MESSAGES, 50)}


def _value(number: int) -> bytes:
    x = b"true" if number % 50 == 0 else b"1"
    return b'{"id":%d,"x":[1,2,3,%b]}' % (number, x)


@pytest.mark.slow
def test_stream__killed_while_it_writes_a_table__each_message_has_one_row(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        killer, jobs, longest = Killer(40_000, __name__), 0, PATIENCE_SECONDS
        while killer.kills < KILLS or jobs < 3:
            folder = tmp_path / f"job{jobs}"
            make_bundle(folder / "bundle")
            send(_source(folder), [Outgoing(_value(n)) for n in range(MESSAGES)])
            url = f"{server.url}&table=scores{jobs}"
            (folder / "target").write_text(url)
            query(url, "CREATE TABLE $T (mlctl_source text PRIMARY KEY, id bigint, y float8[])")
            if jobs == 0:
                longest = killer.undisturbed(answer_all, folder)
            else:
                killer.harass(answer_all, folder, 0.5 * longest, most=12)
            check(folder)
            jobs += 1
    finally:
        server.close()
