"""Redis Streams on a real server: the contract, ownership, leases, restarts, trimming."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.connection

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Guarantee,
    LinkRequest,
    LostPartitionsError,
    Outgoing,
    StreamUrl,
)
from services.stream.transports.redis import transport
from tests.services.precomputed.servers import RedisServer, redis_server
from tests.services.stream.contract import (
    Broker,
    Places,
    TransportContract,
    answer,
    answered,
    numbered,
    numbers,
    open_link,
    read,
    send,
    take,
)
from tests.support.brokers import stalled

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


def place(server: RedisServer, name: str, options: str = "idle_s=0.4") -> StreamUrl:
    return StreamUrl.parse(f"{server.url}?{options}#{name}")


class TestRedis(TransportContract):
    """The contract."""

    @pytest.fixture
    def broker(self, server: RedisServer) -> Broker:
        return Broker(lambda name: place(server, name), Guarantee.EXACTLY_ONCE)

    def test_a_slow_sink_is_waited_for(
        self, broker: Broker, places: Places, server: RedisServer
    ) -> None:
        send(places.source, numbered(0, 20))
        with open_link(places, broker) as link:
            held = take(link, 20)
            with stalled(server.process, 0.6):
                began = time.monotonic()
                answer(link, held)
                assert time.monotonic() - began > 0.4, "it did not wait for the broker"
            assert [*link.poll(20, 0.05)] == []
        assert numbers(read(places.answers)) == [*range(20)]

    def test_a_member_that_works_long_keeps_its_messages(
        self, broker: Broker, places: Places
    ) -> None:
        send(places.source, numbered(0, 10))
        with open_link(places, broker) as busy, open_link(places, broker) as idle:
            held = take(busy, 10)
            deadline = time.monotonic() + 1.2  # three times what it takes to be given up
            while time.monotonic() < deadline:
                busy.poll(0, 0.0)
                assert [*idle.poll(10, 0.1)] == []
            answer(busy, held)
        assert numbers(read(places.answers)) == [*range(10)]

    def test_a_member_that_lost_some_answers_the_others_again(
        self, broker: Broker, places: Places, server: RedisServer
    ) -> None:
        send(places.source, numbered(0, 9))
        with open_link(places, broker) as link, redis.Redis.from_url(server.url) as thief:
            held = take(link, 6)
            take(link, 3)  # Of a later batch: whoever lost one forgets that one, too.
            stolen = [str(each.offset) for each in held[:2]]
            thief.xclaim(places.source.topic, "g", "thief", 0, stolen)
            with pytest.raises(LostPartitionsError):
                answer(link, held)
            assert read(places.answers) == []
            again = take(link, 7)
            answer(link, again)
        assert numbers(again) == [*range(2, 9)]
        assert numbers(read(places.answers)) == [*range(2, 9)]

    def test_what_was_read_under_a_lasting_name_is_read_again(
        self, server: RedisServer, places: Places
    ) -> None:
        named = place(server, places.source.topic, "consumer=one&idle_s=3600")
        wanted = LinkRequest(named, "g", places.answers, places.dead)
        send(places.source, numbered(0, 9))
        with transport.open_link(wanted) as link:
            answer(link, take(link, 9)[:3])
        with transport.open_link(wanted) as link:
            assert numbers(take(link, 6)) == [3, 4, 5, 6, 7, 8]
            # Deleted by someone: there is nothing left to answer.
            with redis.Redis.from_url(server.url) as other:
                (oldest, *_) = other.xpending_range(named.topic, "g", "-", "+", 1)
                other.xdel(named.topic, oldest["message_id"])
        with transport.open_link(wanted) as link:
            assert numbers(take(link, 5)) == [4, 5, 6, 7, 8]
            assert link.lag() == {named.topic: 5}

    def test_a_commit_whose_reply_is_lost_happens_once(
        self, broker: Broker, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(places.source, numbered(0, 10))
        with open_link(places, broker) as link:
            held = take(link, 10)
            connection = redis.connection.AbstractConnection

            def cut(self: Any, *_args: Any, **_named: Any) -> Any:
                monkeypatch.undo()
                assert self.can_read(5)  # the server has done it
                self.disconnect()
                raise redis.ConnectionError("cut")

            monkeypatch.setattr(connection, "read_response", cut)
            with pytest.raises(MlctlError) as caught:
                answer(link, held)
            assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE
            answer(link, held)
            assert [*link.poll(10, 0.05)] == []
        assert numbers(read(places.answers)) == [*range(10)]

    def test_a_read_whose_reply_is_lost_is_read_again(
        self, broker: Broker, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(places.source, numbered(0, 10))
        with open_link(places, broker) as link:
            held = take(link, 4, limit=4)
            read_entries = link._read  # type: ignore[attr-defined]

            def cut(*given: Any) -> Any:
                read_entries(*given)
                raise redis.ConnectionError("cut")

            monkeypatch.setattr(link, "_read", cut)
            with pytest.raises(MlctlError):
                link.poll(6, 0.1)
            monkeypatch.undo()
            rest = take(link, 6)
            assert numbers(rest) == [4, 5, 6, 7, 8, 9], "and not those that are held"
            answer(link, [*held, *rest])
        assert numbers(read(places.answers)) == [*range(10)]


def test_one_member_at_a_time_keeps_the_order(server: RedisServer) -> None:
    source, answers = place(server, "ordered-in"), place(server, "ordered-out")
    wanted = LinkRequest(source, "g", answers, ordered=True)
    send(source, numbered(0, 30))
    with transport.open_link(wanted) as first:
        held = take(first, 10)
        with transport.open_link(wanted) as second:
            assert [*second.poll(10, 0.05)] == []
            answer(first, held)
            held = take(first, 10)
            found = take(second, 20)  # the first one says nothing, and loses the lease
            with pytest.raises(LostPartitionsError):
                answer(first, held)
            assert [int(each.value) for each in found] == [*range(10, 30)]
            answer(second, found)
            send(source, numbered(30, 31))
            answer(second, take(second, 1))
        send(source, numbered(31, 33))
        answer(first, take(first, 2))  # the second one left: at once
    assert [int(each.value) for each in read(answers)] == [*range(33)]


def test_only_what_all_groups_committed_is_trimmed(server: RedisServer) -> None:
    source = place(server, "trimmed", "trim=acknowledged")
    send(source, numbered(0, 20))
    with transport.open_consumer(LinkRequest(source, "slow")) as slow:
        kept = [*slow.poll(20, 1.0)]
        slow.acknowledge(kept[:5])
        with transport.open_consumer(LinkRequest(source, "quick")) as quick:
            quick.acknowledge(quick.poll(20, 1.0))
        with transport.open_consumer(LinkRequest(source, "quick")) as quick:
            assert [*quick.poll(20, 0.05)] == []
        assert numbers(read(source)) == [*range(5, 20)]


def test_trim__abandoned_group_is_forgotten__its_entries_are_removed(server: RedisServer) -> None:
    source = place(server, "abandoned", "trim=acknowledged&idle_s=600")
    send(source, numbered(0, 20))
    with transport.open_consumer(LinkRequest(source, "once")) as once:
        once.acknowledge(once.poll(5, 1.0))
        with pytest.raises(MlctlError) as refused:
            transport.forget(source, "once")
        assert refused.value.code is ErrorCode.JOB_RUNNING
    with transport.open_consumer(LinkRequest(source, "g")) as link:
        link.acknowledge(link.poll(20, 1.0))

    def trimmed() -> list[int]:
        with transport.open_consumer(LinkRequest(source, "g")) as link:
            link.poll(0, 0.0)
        return numbers(read(source))

    assert trimmed() == [*range(4, 20)], "the other group's are kept"
    remark = "group 'once' has not committed all: trimming waits for it"
    assert remark in transport.examine(source, "g").remarks
    transport.forget(source, "once")
    assert trimmed() == [19]
    with pytest.raises(MlctlError) as refused:
        transport.forget(source, "once")
    assert refused.value.code is ErrorCode.NOT_FOUND


def test_entries_of_others_are_messages(server: RedisServer) -> None:
    source = place(server, "foreign", "field=body")
    with redis.Redis.from_url(server.url) as other:
        other.xadd("foreign", {"body": b"1", "key": b"k", "header.value": b"v", "trace": b"t"})
    (found,) = read(source)
    assert (found.value, found.key) == (b"1", b"k")
    assert found.headers == (("value", b"v"), ("trace", b"t"))
    headers = (("key", b"a"), ("value", b"b"), ("header.x", b"c"))
    plain = place(server, "escaped")
    send(plain, [Outgoing(b"2", None, headers)])
    assert read(plain)[0][2:5] == (b"2", None, headers)


def test_more_headers_than_a_script_can_give_on_are_left_out(server: RedisServer) -> None:
    source, answers, dead = (place(server, f"wide-{part}") for part in ("in", "out", "dead"))
    with redis.Redis.from_url(server.url) as other:
        other.xadd("wide-in", {"value": b"1", **{f"f{n}": b"x" for n in range(9000)}})
    send(source, numbered(2, 3))
    ours = (("mlctl-error", b"invalid_input"), ("mlctl-reason", b"why"))
    with transport.open_link(LinkRequest(source, "g", answers, dead)) as link:
        wide, plain = take(link, 2)
        letter = Outgoing(wide.value, wide.key, (*wide.headers, *ours))
        link.commit(Commit([wide, plain], answered([plain]), [letter]))
    (found,) = read(dead)
    assert found.value == b"1"
    assert found.headers == (*ours, ("mlctl-left-out", b"9000 headers"))
    assert numbers(read(answers)) == [2]
    with pytest.raises(MlctlError, match="9000 headers") as caught:
        send(answers, [*numbered(3, 4), Outgoing(b"4", None, wide.headers)])
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert numbers(read(answers)) == [2]


def test_troubles_are_told(server: RedisServer) -> None:
    def code_of(wanted: StreamUrl) -> ErrorCode:
        with pytest.raises(MlctlError) as caught:
            transport.examine(wanted, "g")
        assert "secret" not in caught.value.message
        return caught.value.code

    assert code_of(place(server, "nowhere")) is ErrorCode.NOT_FOUND
    assert code_of(place(server, "")) is ErrorCode.INVALID_INPUT
    assert code_of(place(server, "x", "slot=red")) is ErrorCode.INVALID_INPUT
    assert code_of(StreamUrl.parse("redis://127.0.0.1:9/0#x")) is ErrorCode.BROKER_UNAVAILABLE
    with redis.Redis.from_url(server.url) as other:
        other.set("text", "no stream")
        other.xadd("mixed", {"value": b"1"})
    assert code_of(place(server, "text")) is ErrorCode.INVALID_INPUT
    wanted = LinkRequest(place(server, "mixed"), "g", place(server, "text"))
    with transport.open_link(wanted) as link, pytest.raises(MlctlError) as caught:
        answer(link, take(link, 1))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    other_server = StreamUrl.parse("redis://elsewhere/0#x")
    with pytest.raises(MlctlError, match="not in the server"):
        transport.open_link(LinkRequest(place(server, "mixed"), "g", other_server))


def test_passwords_come_from_the_place_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as guarded:
        with redis.Redis.from_url(guarded.url) as other:
            other.config_set("requirepass", "fir#st")
        address = f"127.0.0.1:{guarded.port}/0"
        with pytest.raises(MlctlError) as caught:
            send(StreamUrl.parse(f"redis://:wrong@{address}#x"), numbered(0, 1))
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        assert "wrong" not in caught.value.message
        send(StreamUrl.parse(f"redis://:fir%23st@{address}#x"), numbered(0, 1))
        monkeypatch.setenv("MLCTL_REDIS_PASSWORD", "fir#st")
        assert numbers(read(StreamUrl.parse(f"redis://{address}#x"))) == [0]
