"""Answers of a stream as rows of a table, in a real PostgreSQL and in SQLite."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import ConnectionRequest, Outgoing, RejectedAnswersError, StreamUrl
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.start import StreamConfig, run_stream
from mlctl.services.stream.transports import transport_of
from mlctl.services.stream.transports.table import TableProducer
from tests.services.stream.contract import read, send
from tests.support.bundles import make_bundle
from tests.support.postgres import PostgresServer
from tests.support.table_jobs import query

pytestmark = pytest.mark.slow

MakeTable = Callable[[str], str]
_COLUMNS = "mlctl_source text PRIMARY KEY, mlctl_digest text, id integer, name text, more json"
_NUMBERS = iter(range(1000))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def make_table(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTable:
    """Make a table with these columns; return its URL."""

    def make(columns: str) -> str:
        name = f"t{next(_NUMBERS)}"
        url = f"sqlite://{tmp_path}/out.db?table={name}"
        if request.param == "postgresql":
            url = f"{request.getfixturevalue('server').url}&table={name}"
        if columns:
            query(url, f"CREATE TABLE $T ({columns})")
        return url

    return make


def producer(url: str) -> TableProducer:
    place = StreamUrl.parse(url)
    made = transport_of(place).open_producer(place)
    assert isinstance(made, TableProducer)
    return made


def answer(number: int, **fields: object) -> Outgoing:
    headers = {"mlctl-source": f"kafka:in/0/{number}", "mlctl-digest": "abc", "mlctl-model": "tiny"}
    encoded = tuple((name, value.encode()) for name, value in headers.items())
    return Outgoing(json.dumps(fields).encode(), b"key", encoded)


def test_table__message_answered_again__its_row_is_replaced(make_table: MakeTable) -> None:
    url = make_table(_COLUMNS)
    with producer(url) as sink:
        sink.publish([answer(1, id=1, name="a"), answer(2, id=2, more={"x": [1]})])
        sink.publish([answer(2, id=3), answer(3, id=4, name="ä\n'", more=[[1], [2.5]])])
        sink.publish([])
    rows = query(url, "SELECT mlctl_source, mlctl_digest, id, name FROM $T ORDER BY 1")
    assert rows == [
        ("kafka:in/0/1", "abc", 1, "a"),
        ("kafka:in/0/2", "abc", 3, None),
        ("kafka:in/0/3", "abc", 4, "ä\n'"),
    ]
    ((more,),) = query(url, "SELECT more FROM $T WHERE id = 4")
    assert (json.loads(more) if isinstance(more, str) else more) == [[1], [2.5]]


def test_table__two_runs_at_once__write_to_one_table(make_table: MakeTable) -> None:
    url = make_table(_COLUMNS)
    with producer(url) as one, producer(url) as other:
        one.publish([answer(1, id=1)])
        other.publish([answer(1, id=2), answer(2, id=3)])
    assert query(url, "SELECT id FROM $T ORDER BY id") == [(2,), (3,)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("", "does not exist"),
        ("id integer", "has no column mlctl_source"),
        ("mlctl_source text, id integer", "rejects the statement"),
    ],
)
def test_table__unusable__is_rejected_at_the_start(
    make_table: MakeTable, columns: str, message: str
) -> None:
    sink = producer(make_table(columns))
    with pytest.raises(MlctlError, match=message) as caught:
        sink.__enter__()
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "geheim" not in str(caught.value)


def test_table__answers_that_do_not_fit__are_named_and_the_others_can_be_written(
    server: PostgresServer,
) -> None:
    url = f"{server.url}&table=fits"
    query(url, f"CREATE TABLE $T ({_COLUMNS}, CHECK (id < 100))")
    good = [answer(n, id=n) for n in range(20)]
    bad = [answer(50, id="text"), answer(51, id=100), answer(52, name="a\0b")]
    with producer(url) as sink:
        with pytest.raises(RejectedAnswersError) as caught:
            sink.publish([*good[:7], bad[0], *good[7:], *bad[1:]])
        assert caught.value.code is ErrorCode.INVALID_INPUT
        assert sorted(caught.value.rejected) == [7, 21, 22]
        assert "integer" in caught.value.rejected[7]
        with pytest.raises(RejectedAnswersError) as caught:
            sink.publish([answer(60, id=1), answer(61, other=1)])
        assert list(caught.value.rejected) == [1]
        assert "has no column 'other'" in caught.value.rejected[1]
        sink.publish(good)
    assert query(url, "SELECT count(*) FROM $T") == [(20,)]


def test_table__message_of_no_run__is_rejected(make_table: MakeTable) -> None:
    with (
        producer(make_table(_COLUMNS)) as sink,
        pytest.raises(MlctlError, match="only answers of a run"),
    ):
        sink.publish([Outgoing(b"{}")])


def test_postgres__connection_lost__next_call_writes_the_rows(server: PostgresServer) -> None:
    url = f"{server.url}&table=lost"
    query(url, f"CREATE TABLE $T ({_COLUMNS})")
    with producer(url) as sink:
        sink.publish([answer(1, id=1)])
        sessions = query(url, "SELECT pid, application_name FROM pg_stat_activity")
        for pid in [pid for pid, name in sessions if name == "mlctl"]:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MlctlError, match="cannot be reached") as caught:
            sink.publish([answer(2, id=2)])
        assert caught.value.code is ErrorCode.SINK_UNAVAILABLE
        server.crash()
        with pytest.raises(MlctlError, match="cannot be reached"):
            sink.publish([answer(2, id=2)])
        server.start()
        sink.publish([answer(2, id=2)])
    assert query(url, "SELECT id FROM $T ORDER BY id") == [(1,), (2,)]


def test_run__answers_go_to_a_table__dead_letters_to_their_stream(
    make_table: MakeTable, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "tiny")
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    values = [b'{"id":%d,"x":[%d,0,0,0]}' % (n, n) for n in range(30)]
    values += [b'{"id":"no number","x":[1,1,1,1]}', b"no json"]
    send(source, [Outgoing(value) for value in values])
    kind = "json" if (url := make_table("")).startswith("sqlite") else "float8[]"
    query(
        url,
        f"CREATE TABLE $T (mlctl_source text PRIMARY KEY, id integer CHECK (id < 99), y {kind})",
    )
    config = StreamConfig(
        ConnectionRequest(source, "g", StreamUrl.parse(url), source.with_topic("dead")),
        PayloadRequest(keep=("id",)),
        RunSettings(dead_share=1.0, until_empty=True),
    )
    report = run_stream(bundle, config, lambda _event: None, threading.Event())
    assert (report.totals.answers, report.totals.dead) == (30, 2)
    rows = query(url, "SELECT id, y FROM $T ORDER BY id")
    assert [row[0] for row in rows] == [*range(30)]
    y = rows[5][1]
    assert len(json.loads(y) if isinstance(y, str) else y) == 4
    assert {message.value for message in read(source.with_topic("dead"))} == set(values[30:])


@pytest.mark.parametrize(
    ("target", "payload", "message"),
    [
        ("sqlite://out.db?table=t&key=id", "json", "has no option 'key'"),
        ("sqlite://out.db?table=t", "raw", "only JSON answers can go to"),
        ("postgresql://host/db", "json", "is not a table name"),
    ],
)
def test_run__invalid_table__is_rejected(
    tmp_path: Path, target: str, payload: str, message: str
) -> None:
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    config = StreamConfig(
        ConnectionRequest(source, "g", StreamUrl.parse(target), source.with_topic("dead")),
        PayloadRequest(payload),
    )
    with pytest.raises(MlctlError, match=message) as caught:
        run_stream(make_bundle(tmp_path / "tiny"), config, lambda _e: None, threading.Event())
    assert caught.value.code is ErrorCode.INVALID_INPUT
