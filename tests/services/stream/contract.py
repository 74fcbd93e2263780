"""What every transport must do. Subclass `TransportContract`, and give a fixture `broker`.

class TestSqlite(TransportContract):
    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker: ...
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    LostPartitionsError,
    Message,
    Outgoing,
    StreamConnection,
    StreamUrl,
)
from mlctl.services.stream.transports import transport_of
from mlctl.services.stream.transports.bridge import connect
from tests.support.wait import PATIENCE_SECONDS, wait_until

_NUMBER = itertools.count()


@dataclass(frozen=True)
class Broker:
    """A real broker. `place` makes a topic of that name (new names are given) with its options.

    `takes_over`: a member that went silent is replaced, within the test's patience; `fences`: it
    is then told so when it commits. `groups`: several groups read the same messages.
    `guarantee` is of a link whose places are all at this broker.
    """

    place: Callable[[str], StreamUrl]
    guarantee: Guarantee
    exactly_once: bool = False
    takes_over: bool = True
    fences: bool = True
    groups: bool = True
    shares: bool = True


@dataclass(frozen=True)
class Places:
    """A stream's three places, empty."""

    source: StreamUrl
    answers: StreamUrl
    dead: StreamUrl


def request(
    places: Places, broker: Broker, group: str = "g", start: str = "earliest"
) -> ConnectionRequest:
    return ConnectionRequest(
        places.source, group, places.answers, places.dead, start, broker.exactly_once
    )


def open_link(
    places: Places, broker: Broker, group: str = "g", start: str = "earliest"
) -> StreamConnection:
    return connect(request(places, broker, group, start))


def send(place: StreamUrl, messages: Sequence[Outgoing]) -> None:
    with transport_of(place).open_producer(place) as producer:
        producer.publish(messages)


def numbered(first: int, last: int) -> list[Outgoing]:
    """Messages whose values are the numbers first, ..., last - 1."""
    return [Outgoing(b"%d" % n, b"k%d" % (n % 7)) for n in range(first, last)]


def read(place: StreamUrl, last: int | None = None) -> list[Message]:
    """What is there."""
    return [*transport_of(place).browse(place, last=last)]


def values(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def numbers(messages: Sequence[Message]) -> list[int]:
    return sorted(int(message.value or b"") for message in messages)


def take(link: StreamConnection, count: int, limit: int = 1000) -> list[Message]:
    """`count` messages, in as many polls as they take."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += link.poll(min(limit, count - len(found)), 0.2)
    return found


def answered(messages: Sequence[Message]) -> list[Outgoing]:
    """An answer to each message, as the engine makes it."""
    return [
        Outgoing(m.value, m.key, (("source", b"%s" % str(m.offset).encode()),)) for m in messages
    ]


def answer(link: StreamConnection, messages: Sequence[Message]) -> None:
    link.commit(Commit(messages, answered(messages)))


class TransportContract:
    """The tests; a subclass adds those of its own broker."""

    @pytest.fixture
    def places(self, broker: Broker) -> Places:
        name = f"t{next(_NUMBER)}"
        return Places(*(broker.place(f"{name}-{part}") for part in ("in", "out", "dead")))

    def test_transport__messages__come_as_they_were_sent(
        self, broker: Broker, places: Places
    ) -> None:
        sent = [
            Outgoing(b"first", b"key", (("h", b"1"), ("h", b"2"), ("other", b"\x00\xff"))),
            Outgoing(b"\x00\xff\n\r", None),
            Outgoing(b"third", b"key", (("h", b""),)),
            Outgoing(None, b"gone", (("h", None), ("i", b""))),
        ]
        send(places.source, sent)
        with open_link(places, broker) as link:
            found = take(link, len(sent))
        order = {each.value: each for each in found}
        for each in sent:
            assert order[each.value].key == each.key
            assert order[each.value].headers == each.headers
        assert len({(each.partition, each.offset) for each in found}) == len(sent)

    def test_transport__messages_of_one_key__come_in_order(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 500))
        with open_link(places, broker) as link:
            found = take(link, 500, limit=64)
        assert numbers(found) == [*range(500)]
        for key in {each.key for each in found}:
            of_key = [int(each.content) for each in found if each.key == key]
            assert of_key == sorted(of_key)

    def test_transport__commit__covers_answers_dead_letters_and_position(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 20))
        with open_link(places, broker) as link:
            assert link.guarantee is broker.guarantee
            found = take(link, 20)
            dead = [Outgoing(found[3].value, found[3].key, (("why", b"broken"),))]
            link.commit(Commit(found, answered(found[:3] + found[4:]), dead))
        kept = [int(each.content) for each in found[:3] + found[4:]]
        assert numbers(read(places.answers)) == sorted(kept)
        (letter,) = read(places.dead)
        assert (letter.value, letter.key) == (found[3].value, found[3].key)
        assert ("why", b"broken") in letter.headers
        assert all("source" in dict(each.headers) for each in read(places.answers))
        send(places.source, numbered(20, 25))
        with open_link(places, broker) as link:
            assert numbers(take(link, 5)) == [*range(20, 25)]

    def test_transport__uncommitted_messages__come_again(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 30))
        with open_link(places, broker) as link:
            found = take(link, 30)
            by_partition = sorted(found, key=lambda m: m.partition)
            first = [m for m in by_partition if m.partition == by_partition[0].partition][:1]
            answer(link, first)
        with open_link(places, broker) as link:
            rest = take(link, 29)
            answer(link, rest)
        assert numbers([*first, *rest]) == [*range(30)]
        assert numbers(read(places.answers)) == [*range(30)]

    def test_transport__poll__waits_for_the_first_message_only(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 3))
        with open_link(places, broker) as link:
            take(link, 3)
            began = time.monotonic()
            assert [*link.poll(10, 0.2)] == []
            assert time.monotonic() - began > 0.1
            assert [*link.poll(0, 0.0)] == []
            send(places.source, numbered(3, 4))
            began = time.monotonic()
            found = [*link.poll(1000, 20.0)]
            assert numbers(found) == [3]
            assert time.monotonic() - began < 15.0, "it waited for more"

    def test_transport__messages_sent_later__are_found(
        self, broker: Broker, places: Places
    ) -> None:
        with open_link(places, broker) as link:
            link.poll(10, 0.1)
            for first in range(0, 60, 20):
                send(places.source, numbered(first, first + 20))
                answer(link, take(link, 20))
        assert numbers(read(places.answers)) == [*range(60)]

    def test_transport__lag__is_what_no_commit_covers(self, broker: Broker, places: Places) -> None:
        send(places.source, numbered(0, 40))
        with open_link(places, broker) as link:
            found = take(link, 40)
            assert sum(link.lag().values()) == 40
            answer(link, found)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while sum(link.lag().values()):
                assert time.monotonic() < deadline
                link.poll(0, 0.05)

    def test_group_lag__one_member_holds_all_messages__the_other_sees_them_too(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 40))
        with open_link(places, broker) as link:
            found = take(link, 40)
            assert link.group_lag() == 40
            answer(link, found[:30])
            wait_until(lambda: link.group_lag() == 10)
            if broker.shares:
                with open_link(places, broker) as idle:
                    assert idle.group_lag() == 10
            send(places.source, numbered(40, 43))
            assert link.group_lag() == 13

    def test_transport__two_groups__read_independently(
        self, broker: Broker, places: Places
    ) -> None:
        if not broker.groups:
            pytest.skip("it has no groups")
        send(places.source, numbered(0, 10))
        for group in ("a", "b"):
            with open_link(places, broker, group) as link:
                found = take(link, 10)
                assert sorted(numbers(found)) == [*range(10)]
                answer(link, found)

    def test_transport__new_group_at_the_end__reads_only_new_messages(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 10))
        with open_link(places, broker, "late", "latest") as link:
            deadline = time.monotonic() + PATIENCE_SECONDS
            # Until the membership is settled nobody knows which message is the first of all.
            while not link.lag():
                assert time.monotonic() < deadline
                assert [*link.poll(10, 0.2)] == []
            assert [*link.poll(10, 0.2)] == []
            send(places.source, numbered(10, 13))
            assert numbers(take(link, 3)) == [10, 11, 12]

    def test_transport__two_members__share_the_work(self, broker: Broker, places: Places) -> None:
        if not broker.shares:
            pytest.skip("its consumers share no work")
        send(places.source, numbered(0, 200))
        with ExitStack() as stack:
            links = [stack.enter_context(open_link(places, broker)) for _ in range(2)]
            deadline = time.monotonic() + PATIENCE_SECONDS
            done: set[int] = set()
            while len(done) < 200:
                assert time.monotonic() < deadline, f"{len(done)} of 200"
                for link in links:
                    found = link.poll(17, 0.05)
                    try:
                        if found:
                            answer(link, found)
                    except LostPartitionsError:
                        continue
                    done |= {int(each.content) for each in found}
        assert set(numbers(read(places.answers))) == {*range(200)}
        if broker.guarantee is Guarantee.EXACTLY_ONCE:
            assert numbers(read(places.answers)) == [*range(200)]

    def test_transport__silent_member__is_replaced(self, broker: Broker, places: Places) -> None:
        if not broker.takes_over:
            return
        send(places.source, numbered(0, 50))
        with open_link(places, broker) as silent:
            held = take(silent, 50)
            with open_link(places, broker) as heir:
                found = take(heir, 50)
                answer(heir, found)
                if broker.fences:
                    with pytest.raises(LostPartitionsError):
                        answer(silent, held)
        assert numbers(found) == [*range(50)]
        if broker.fences:
            assert numbers(read(places.answers)) == [*range(50)]

    def test_transport__one_side_of_a_pair__works_with_another_broker(self, places: Places) -> None:
        send(places.source, numbered(0, 12))
        transport = transport_of(places.source)
        with transport.open_connection(ConnectionRequest(places.source, "g")) as consumer:
            found: list[Message] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(found) < 12:
                assert time.monotonic() < deadline
                found += consumer.poll(12, 0.2)
            consumer.commit(Commit(found))
        send(places.source, numbered(12, 14))
        with transport.open_connection(ConnectionRequest(places.source, "g")) as consumer:
            found = []
            while len(found) < 2:
                assert time.monotonic() < deadline
                found += consumer.poll(12, 0.2)
        assert numbers(found) == [12, 13]

    def test_transport__peek__shows_what_is_there(self, broker: Broker, places: Places) -> None:
        transport = transport_of(places.source)
        send(places.source, numbered(0, 30))
        assert numbers(read(places.source)) == [*range(30)]
        assert len(read(places.source, last=4)) == 4
        with open_link(places, broker) as link:
            answer(link, take(link, 30))
        send(places.source, numbered(30, 35))
        examined = transport.status(places.source, "g")
        assert examined.server
        assert examined.messages in {None, 35}
        assert examined.lag is None or sum(examined.lag.values()) == 5
        assert numbers(read(places.source)) == [*range(35)]
