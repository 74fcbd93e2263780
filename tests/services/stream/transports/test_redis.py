"""Redis Streams on a real server: the contract, ownership, leases, restarts, trimming."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.connection

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    LostPartitionsError,
    Outgoing,
    StreamUrl,
)
from mlctl.services.stream.transports.redis import transport
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

    def test_redis__slow_sink__is_waited_for(
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

    def test_redis__member_that_works_long__keeps_its_messages(
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

    def test_redis__member_that_lost_messages__answers_the_others(
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

    def test_redis__commit_without_a_reply__happens_once(
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

    def test_redis__read_without_a_reply__is_repeated(
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


def test_redis__retention__keeps_what_a_group_has_not_committed(server: RedisServer) -> None:
    source = place(server, "trimmed", "trim=acknowledged")
    send(source, numbered(0, 20))
    with transport.open_connection(ConnectionRequest(source, "slow")) as slow:
        kept = [*slow.poll(20, 1.0)]
        slow.commit(Commit(kept[:5]))
        with transport.open_connection(ConnectionRequest(source, "quick")) as quick:
            quick.commit(Commit(quick.poll(20, 1.0)))
        with transport.open_connection(ConnectionRequest(source, "quick")) as quick:
            assert [*quick.poll(20, 0.05)] == []
        assert numbers(read(source)) == [*range(5, 20)]


def test_trim__abandoned_group_is_forgotten__its_entries_are_removed(server: RedisServer) -> None:
    source = place(server, "abandoned", "trim=acknowledged&idle_s=600")
    send(source, numbered(0, 20))
    with transport.open_connection(ConnectionRequest(source, "once")) as once:
        once.commit(Commit(once.poll(5, 1.0)))
        with pytest.raises(MlctlError) as refused:
            transport.forget_group(source, "once")
        assert refused.value.code is ErrorCode.JOB_RUNNING
    with transport.open_connection(ConnectionRequest(source, "g")) as link:
        link.commit(Commit(link.poll(20, 1.0)))

    def trimmed() -> list[int]:
        with transport.open_connection(ConnectionRequest(source, "g")) as link:
            link.poll(0, 0.0)
        return numbers(read(source))

    assert trimmed() == [*range(4, 20)], "the other group's are kept"
    (abandoned,) = [
        each for each in transport.status(source, "g").groups or () if each.name == "once"
    ]
    assert (abandoned.lag, abandoned.members) == (15, 0)
    transport.forget_group(source, "once")
    assert trimmed() == [19]
    with pytest.raises(MlctlError) as refused:
        transport.forget_group(source, "once")
    assert refused.value.code is ErrorCode.NOT_FOUND


def test_trim__group_without_a_consumer_for_long__is_not_waited_for(server: RedisServer) -> None:
    source = place(server, "silent", "trim=acknowledged")
    send(source, numbered(0, 20))
    for group, count in (("once", 5), ("g", 20)):
        with transport.open_connection(ConnectionRequest(source, group)) as link:
            link.commit(Commit(link.poll(count, 1.0)))
    with redis.Redis.from_url(server.url) as other:
        other.hset("silent:mlctl:active", "once", int(time.time()) - 8 * 86_400)
        with transport.open_connection(ConnectionRequest(source, "g")) as link:
            link.poll(0, 0.0)
    assert numbers(read(source)) == [19]


def test_redis__entries_of_other_producers__are_messages(server: RedisServer) -> None:
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


def test_redis__too_many_headers__are_dropped(server: RedisServer) -> None:
    source, answers, dead = (place(server, f"wide-{part}") for part in ("in", "out", "dead"))
    with redis.Redis.from_url(server.url) as other:
        other.xadd("wide-in", {"value": b"1", **{f"f{n}": b"x" for n in range(9000)}})
    send(source, numbered(2, 3))
    ours = (("mlctl-error", b"invalid_input"), ("mlctl-reason", b"why"))
    with transport.open_connection(ConnectionRequest(source, "g", answers, dead)) as link:
        wide, plain = take(link, 2)
        letter = Outgoing(wide.value, wide.key, (*wide.headers, *ours))
        link.commit(Commit([wide, plain], answered([plain]), [letter]))
    (found,) = read(dead)
    assert found.value == b"1"
    assert found.headers == (*ours, ("mlctl-left-out", b"9000 headers"))
    assert numbers(read(answers)) == [2]
    with pytest.raises(MlctlError, match="9,000 headers") as caught:
        send(answers, [*numbered(3, 4), Outgoing(b"4", None, wide.headers)])
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert numbers(read(answers)) == [2]


def test_redis__unusable_server__is_reported(server: RedisServer) -> None:
    def code_of(wanted: StreamUrl) -> ErrorCode:
        with pytest.raises(MlctlError) as caught:
            transport.status(wanted, "g")
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
    wanted = ConnectionRequest(place(server, "mixed"), "g", place(server, "text"))
    with transport.open_connection(wanted) as link, pytest.raises(MlctlError) as caught:
        answer(link, take(link, 1))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    other_server = StreamUrl.parse("redis://elsewhere/0#x")
    with pytest.raises(MlctlError, match="not in the server"):
        transport.open_connection(ConnectionRequest(place(server, "mixed"), "g", other_server))


def test_redis__password__from_the_url_or_the_environment(
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
