"""The log in an SQLite file: the contract, leases, fencing, partitions, retention, old files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Guarantee,
    LinkRequest,
    LostPartitionsError,
    Outgoing,
    StreamUrl,
)
from services.stream.transports.sqlite import SqliteLink, transport
from services.stream.transports.sqlite_log import Log
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


def places_in(folder: Path, options: str = "") -> Callable[[str], StreamUrl]:
    return lambda name: StreamUrl.parse(
        f"sqlite://{folder / 'events.db'}?lease=0.6{options}#{name}"
    )


class TestSqlite(TransportContract):
    """One partition."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        return Broker(places_in(tmp_path), Guarantee.EXACTLY_ONCE)


class TestPartitions(TransportContract):
    """Several of them."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        return Broker(places_in(tmp_path, "&partitions=3"), Guarantee.EXACTLY_ONCE)


@pytest.fixture
def source(tmp_path: Path) -> StreamUrl:
    return StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}#in")


def link_of(source: StreamUrl, clock: ManualClock | None = None) -> SqliteLink:
    return SqliteLink(
        LinkRequest(source, "g", source.named("out"), source.named("dead")), clock or ManualClock()
    )


class Told:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []

    def revoked(self, partitions: Sequence[str]) -> None:
        self.told.append(("revoked", sorted(partitions)))

    def lost(self, partitions: Sequence[str]) -> None:
        self.told.append(("lost", sorted(partitions)))


def test_partitions_move_to_a_member_that_joins_and_back(source: StreamUrl) -> None:
    source = StreamUrl(source.scheme, source.address, "in", {"partitions": "4"})
    send(source, numbered(0, 100))
    clock, told = ManualClock(), Told()
    with link_of(source, clock) as first:
        first.listen(told)
        assert len(take(first, 100)) == 100
        with link_of(source, clock) as second:
            second.poll(0, 0.0)
            clock.advance(3.0)
            assert [*first.poll(100, 0.0)] == []
            assert told.told == [("revoked", ["1", "3"])]
            clock.advance(3.0)
            found = [*second.poll(100, 0.0)]
            assert {each.partition for each in found} == {"1", "3"}
            answer(second, found)
        clock.advance(3.0)
        assert [*first.poll(100, 0.0)] == [], "the second one has committed them"
        assert sorted(first.lag()) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_jumps_moves_partitions_but_loses_and_doubles_nothing(
    source: StreamUrl, jump: float
) -> None:
    send(source, numbered(0, 20))
    ours, theirs = ManualClock(10_000.0), ManualClock(10_000.0 + jump)
    told = Told()
    with link_of(source, ours) as first:
        first.listen(told)
        held = take(first, 20)
        with link_of(source, theirs) as second:
            answer(second, take(second, 20))
            with pytest.raises(LostPartitionsError):
                answer(first, held)
            ours.advance(3.0)
            assert [*first.poll(20, 0.0)] == []
            assert told.told == [("lost", ["0"])]
    assert numbers(read(source.named("out"))) == [*range(20)]


def test_after_a_refused_commit_what_is_still_ours_comes_again(source: StreamUrl) -> None:
    source = StreamUrl(source.scheme, source.address, "in", {"partitions": "2"})
    send(source, numbered(0, 40))
    clock = ManualClock()
    with link_of(source, clock) as link:
        found = take(link, 40)
        with sqlite3.connect(source.address) as db:
            db.execute("UPDATE positions SET owner = 'another', epoch = epoch + 1 WHERE part = 1")
        db.close()
        with pytest.raises(LostPartitionsError):
            answer(link, found)
        again = link.poll(40, 0.0)
        assert numbers(again) == numbers([each for each in found if each.partition == "0"])
        answer(link, again)
    assert numbers(read(source.named("out"))) == numbers(again)


def test_a_commit_that_fails_leaves_nothing_and_can_be_repeated(source: StreamUrl) -> None:
    send(source, numbered(0, 10))
    with link_of(source) as link, sqlite3.connect(source.address) as db:
        found = take(link, 10)
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON log_3_0 BEGIN SELECT RAISE(ABORT, 'x'); END"
        )
        letters = [Outgoing(found[0].value)]
        with pytest.raises(sqlite3.IntegrityError):
            link.commit(Commit(found, [Outgoing(each.value) for each in found], letters))
        assert read(source.named("out")) == []
        db.execute("DROP TRIGGER full")
        link.commit(Commit(found, [Outgoing(each.value) for each in found], letters))
        assert (len(read(source.named("out"))), len(read(source.named("dead")))) == (10, 1)
    db.close()


def test_old_messages_go_once_every_group_has_committed_them(
    source: StreamUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.stream.transports.sqlite_log._ROW_MESSAGES", 1024)
    kept = StreamUrl(source.scheme, source.address, "in", {"retention": "0.000001"})
    send(source, numbered(0, 3000))
    clock = ManualClock()
    with link_of(kept, clock) as link:
        found = take(link, 2048)
        assert len(read(source)) == 3000, "not even one group has committed them"
        answer(link, found)
        clock.advance(6.0)
        link.poll(0, 0.0)
        assert numbers(read(source)) == [*range(2048, 3000)]
        answer(link, take(link, 952))
        clock.advance(6.0)
        link.poll(0, 0.0)
    left = read(source)
    assert 0 < len(left) < 1024
    send(source, numbered(3000, 3001))
    assert read(source)[-1].offset == 3000, "offsets go on where they were"


def test_retention__abandoned_group_is_forgotten__its_messages_are_removed(
    source: StreamUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.stream.transports.sqlite_log._ROW_MESSAGES", 10)
    send(source, numbered(0, 30))
    clock = ManualClock()
    with SqliteLink(LinkRequest(source, "once")) as abandoned:
        abandoned.acknowledge(take(abandoned, 10))
        with pytest.raises(MlctlError) as refused:
            transport.forget(source, "once")
        assert refused.value.code is ErrorCode.JOB_RUNNING
    kept = StreamUrl(source.scheme, source.address, "in", {"retention": "0.000001"})
    with link_of(kept, clock) as link:
        answer(link, take(link, 30))
        clock.advance(6.0)
        link.poll(0, 0.0)
        assert numbers(read(source)) == [*range(10, 30)], "the other group's are kept"
        remarks = transport.examine(source, "g").remarks
        assert "retention waits for group 'once' (20 behind)" in remarks
        transport.forget(source, "once")
        clock.advance(6.0)
        link.poll(0, 0.0)
        assert numbers(read(source)) == [*range(20, 30)]
    with pytest.raises(MlctlError) as refused:
        transport.forget(source, "once")
    assert refused.value.code is ErrorCode.NOT_FOUND


def test_large_messages_and_many_of_them(source: StreamUrl) -> None:
    values = [b"x" * (700_000 + index) for index in range(5)] + [b"%d" % n for n in range(5000)]
    send(source, [Outgoing(value) for value in values])
    with link_of(source) as link:
        found = take(link, len(values), limit=7)
    assert [each.value for each in found] == values
    assert [each.offset for each in found] == [*range(len(values))]


def test_two_members_may_open_a_new_file_at_once(tmp_path: Path) -> None:
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
        ("sqlite://{folder}/events.db?partitions=x#in", ErrorCode.INVALID_INPUT),
        ("sqlite://{folder}/events.db?partitions=2#one", ErrorCode.INVALID_INPUT),
    ],
)
def test_places_that_are_no_log_are_refused(tmp_path: Path, text: str, code: ErrorCode) -> None:
    send(StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}#one"), numbered(0, 1))
    (tmp_path / "text.db").write_text("no database " * 100)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    place = StreamUrl.parse(text.format(folder=tmp_path))
    with pytest.raises(MlctlError) as caught, transport.open_producer(place):
        raise AssertionError(place)
    assert caught.value.code is code


def test_looking_makes_nothing(tmp_path: Path) -> None:
    place = StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}#in")
    with pytest.raises(MlctlError) as caught:
        transport.examine(place, "g")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert not (tmp_path / "events.db").exists()


def test_a_locked_file_is_worth_another_try(
    source: StreamUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(source, numbered(0, 1))
    monkeypatch.setattr("services.stream.transports.sqlite_log._BUSY_SECONDS", 0.01)
    with sqlite3.connect(source.address) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(MlctlError) as caught:
            send(source, numbered(1, 2))
        assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE
        db.rollback()
    db.close()
    send(source, numbered(1, 2))
    assert numbers(read(source)) == [0, 1]
