"""The log in an SQLite file: the contract, leases, fencing, partitions, retention, old files."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    LostPartitionsError,
    Outgoing,
    StreamUrl,
)
from mlctl.services.stream.transports.sqlite import Log, SqliteConnection, transport
from tests.services.stream.contract import (
    Broker,
    TransportContract,
    answer,
    numbered,
    numbers,
    read,
    send,
    take,
)
from tests.support.clock import ManualClock


def places_in(folder: Path, options: str = "") -> Callable[[str], StreamUrl]:
    return lambda name: StreamUrl.parse(
        f"sqlite://{folder / 'events.db'}?lease=0.6{options}#{name}"
    )


class TestSqlite(TransportContract):
    """One partition."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        return Broker(places_in(tmp_path), Guarantee.EXACTLY_ONCE)


@pytest.fixture
def source(tmp_path: Path) -> StreamUrl:
    return StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}#in")


def link_of(source: StreamUrl, clock: ManualClock | None = None) -> SqliteConnection:
    return SqliteConnection(
        ConnectionRequest(source, "g", source.with_topic("out"), source.with_topic("dead")),
        clock or ManualClock(time.time()),
    )


class Listener:
    """Records the partitions that were lost."""

    def __init__(self) -> None:
        self.lost_partitions: list[Sequence[str]] = []

    def revoked(self, partitions: Sequence[str]) -> None:
        raise AssertionError(partitions)

    def lost(self, partitions: Sequence[str]) -> None:
        self.lost_partitions.append(partitions)


def test_group__second_member__takes_over_when_the_first_leaves(source: StreamUrl) -> None:
    send(source, numbered(0, 100))
    clock = ManualClock(time.time())
    with link_of(source, clock) as second:
        with link_of(source, clock) as first:
            answer(first, take(first, 60))
            assert [*second.poll(100, 0.0)] == []
            assert (second.lag(), second.group_lag()) == ({}, 40)
        clock.advance(3.0)
        assert numbers(take(second, 40)) == [*range(60, 100)]


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_lease__clock_jumps__the_topic_moves_and_each_message_is_answered_once(
    source: StreamUrl, jump: float
) -> None:
    send(source, numbered(0, 20))
    ours, theirs = ManualClock(10_000.0), ManualClock(10_000.0 + jump)
    listener = Listener()
    with link_of(source, ours) as first:
        first.listen(listener)
        take(first, 20)
        with link_of(source, theirs) as second:
            answer(second, take(second, 20))
            ours.advance(3.0)
            assert [*first.poll(20, 0.0)] == []
            assert listener.lost_partitions == [["0"]]
    assert numbers(read(source.with_topic("out"))) == [*range(20)]


def test_commit__lease_was_taken_over__is_rejected_and_messages_come_again(
    source: StreamUrl,
) -> None:
    send(source, numbered(0, 20))
    clock = ManualClock(time.time())
    with link_of(source, clock) as link:
        held = take(link, 20)
        with sqlite3.connect(source.address) as db:
            db.execute("UPDATE positions SET owner = 'another'")
        with pytest.raises(LostPartitionsError):
            answer(link, held)
        clock.advance(3.0)
        assert [*link.poll(20, 0.0)] == []
        with db:
            db.execute("UPDATE positions SET owner = NULL")
        db.close()
        clock.advance(3.0)
        answer(link, take(link, 20))
    assert numbers(read(source.with_topic("out"))) == [*range(20)]


def test_sqlite_log__failed_commit__leaves_nothing_and_can_be_repeated(source: StreamUrl) -> None:
    send(source, numbered(0, 10))
    with link_of(source) as link, sqlite3.connect(source.address) as db:
        found = take(link, 10)
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON messages WHEN new.id >> 40 = 3 "
            "BEGIN SELECT RAISE(ABORT, 'x'); END"
        )
        letters = [Outgoing(found[0].value)]
        with pytest.raises(sqlite3.IntegrityError):
            link.commit(Commit(found, [Outgoing(each.value) for each in found], letters))
        assert read(source.with_topic("out")) == []
        db.execute("DROP TRIGGER full")
        link.commit(Commit(found, [Outgoing(each.value) for each in found], letters))
        assert (len(read(source.with_topic("out"))), len(read(source.with_topic("dead")))) == (
            10,
            1,
        )
    db.close()


def with_retention(source: StreamUrl) -> StreamUrl:
    return StreamUrl(source.scheme, source.address, source.topic, {"retention": "0.000001"})


def test_retention__every_group_has_committed__old_messages_are_removed(source: StreamUrl) -> None:
    send(source, numbered(0, 3000))
    clock = ManualClock(time.time())
    with link_of(with_retention(source), clock) as link:
        found = take(link, 2048)
        assert len(read(source)) == 3000, "no group has committed them"
        answer(link, found)
        clock.advance(6.0)
        link.poll(0, 0.0)
        assert numbers(read(source)) == [*range(2048, 3000)]
        answer(link, take(link, 952))
        clock.advance(6.0)
        link.poll(0, 0.0)
    assert numbers(read(source)) == [2999]
    send(source, numbered(3000, 3001))
    assert read(source)[-1].offset == 3000, "offsets continue"


def test_retention__abandoned_group_is_forgotten__its_messages_are_removed(
    source: StreamUrl,
) -> None:
    send(source, numbered(0, 30))
    clock = ManualClock(time.time())
    with SqliteConnection(ConnectionRequest(source, "once")) as abandoned:
        abandoned.commit(Commit(take(abandoned, 10)))
        with pytest.raises(MlctlError) as refused:
            transport.forget_group(source, "once")
        assert refused.value.code is ErrorCode.JOB_RUNNING
    with link_of(with_retention(source), clock) as link:
        answer(link, take(link, 30))
        clock.advance(6.0)
        link.poll(0, 0.0)
        assert numbers(read(source)) == [*range(10, 30)], "the other group's are kept"
        groups = {each.name: each for each in transport.status(source, "g").groups or ()}
        assert (groups["once"].lag, groups["once"].members) == (20, 0)
        transport.forget_group(source, "once")
        clock.advance(6.0)
        link.poll(0, 0.0)
        assert numbers(read(source)) == [29]
    with pytest.raises(MlctlError) as refused:
        transport.forget_group(source, "once")
    assert refused.value.code is ErrorCode.NOT_FOUND


def test_retention__group_without_a_consumer_for_a_week__is_not_waited_for(
    source: StreamUrl,
) -> None:
    send(source, numbered(0, 30))
    with SqliteConnection(ConnectionRequest(source, "once")) as abandoned:
        abandoned.commit(Commit(take(abandoned, 10)))
    with sqlite3.connect(source.address) as db:
        db.execute("UPDATE positions SET renewed = renewed - 8 * 86400 WHERE consumers = 'once'")
    db.close()
    clock = ManualClock(time.time())
    with link_of(with_retention(source), clock) as link:
        answer(link, take(link, 30))
        clock.advance(6.0)
        link.poll(0, 0.0)
    assert numbers(read(source)) == [29]
    with SqliteConnection(ConnectionRequest(source, "once")) as returned:
        assert returned.group_lag() == 1
        assert numbers(take(returned, 1)) == [29]


def test_sqlite_log__large_and_many_messages__are_read_back(source: StreamUrl) -> None:
    values = [b"x" * (700_000 + index) for index in range(5)] + [b"%d" % n for n in range(5000)]
    send(source, [Outgoing(value) for value in values])
    with link_of(source) as link:
        found = take(link, len(values), limit=7)
    assert [each.value for each in found] == values
    assert [each.offset for each in found] == [*range(len(values))]


def test_sqlite_log__two_members_open_a_new_file__both_work(tmp_path: Path) -> None:
    with ExitStack() as stack:
        logs = [Log(tmp_path / "events.db") for _ in range(2)]
        for log in logs:
            stack.callback(log.close)
        assert logs[0].topic("a") == logs[1].topic("a")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sqlite://#in", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/events.db", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/nowhere/events.db#in", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/other.db#in", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/text.db#in", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/events.db?partition=2#in", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/events.db?retention=x#in", ErrorCode.INVALID_INPUT),
    ],
)
def test_sqlite__file_that_is_no_log__is_rejected(
    tmp_path: Path, text: str, code: ErrorCode
) -> None:
    send(StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}#one"), numbered(0, 1))
    (tmp_path / "text.db").write_text("no database " * 100)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    place = StreamUrl.parse(text.format(folder=tmp_path))
    with pytest.raises(MlctlError) as caught, transport.open_producer(place):
        raise AssertionError(place)
    assert caught.value.code is code


def test_sqlite__browse_of_a_missing_file__creates_nothing(tmp_path: Path) -> None:
    place = StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}#in")
    with pytest.raises(MlctlError) as caught:
        transport.status(place, "g")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert not (tmp_path / "events.db").exists()


def test_sqlite_log__locked_file__is_retried(
    source: StreamUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(source, numbered(0, 1))
    monkeypatch.setattr("mlctl.services.stream.transports.sqlite._BUSY_SECONDS", 0.01)
    with sqlite3.connect(source.address) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(MlctlError) as caught:
            send(source, numbered(1, 2))
        assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE
        db.rollback()
    db.close()
    send(source, numbered(1, 2))
    assert numbers(read(source)) == [0, 1]
