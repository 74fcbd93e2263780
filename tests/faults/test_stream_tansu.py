"""Kafka's transactions on Tansu: kills and aborts, seen by a reader of committed messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Commit, ConnectionRequest, Guarantee, Outgoing, StreamUrl
from services.stream.transports.kafka import KafkaConnection, transport
from tests.services.stream.contract import answered, numbered, send, take
from tests.support.tansu import committed_values, create_topics, tansu_broker

_PARTITIONS = 2
_OPTIONS = "session.timeout.ms=6000&heartbeat.interval.ms=500&transaction.timeout.ms=6000"
_TOPICS = ("in", "out", "dead")

_MEMBER = """
import sys
from contextlib import suppress
from services.stream.base import Commit, ConnectionRequest, LostPartitionsError, StreamUrl
from services.stream.transports.kafka import transport
from tests.services.stream.contract import answered

source, answers = map(StreamUrl.parse, sys.argv[1:])
request = ConnectionRequest(source, "g", answers, exactly_once=True)
with transport.open_connection(request) as member:
    print("ready", flush=True)
    while True:
        if found := member.poll(10, 0.2):
            with suppress(LostPartitionsError):
                member.commit(Commit(found, answered(found)))
                print(len(found), flush=True)
"""


@pytest.fixture
def address() -> Iterator[str]:
    with tansu_broker() as found:
        create_topics(found, _TOPICS, _PARTITIONS)
        yield found


def url(address: str, topic: str) -> StreamUrl:
    return StreamUrl.parse(f"kafka://{address}?{_OPTIONS}#{topic}")


def test_transaction__aborted_and_repeated__readers_see_each_answer_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, answers, dead = (url(address, topic) for topic in _TOPICS)
    send(source, numbered(0, 100))
    request = ConnectionRequest(source, "g", answers, dead, exactly_once=True)
    with transport.open_connection(request) as member:
        assert isinstance(member, KafkaConnection)
        assert member.guarantee is Guarantee.EXACTLY_ONCE
        found = take(member, 100)
        batch = Commit(found, answered(found[1:]), [Outgoing(found[0].value)])

        def fail(*_given: Any) -> Any:
            assert member._sender._producer.flush(10) == 0, "the broker has the answers"
            raise MlctlError(ErrorCode.BROKER_UNAVAILABLE, "after the answers were sent")

        with monkeypatch.context() as patch:
            patch.setattr(member, "metadata", fail)
            with pytest.raises(MlctlError, match="after the answers were sent"):
                member.commit(batch)
        member.commit(batch)
    seen = committed_values(address, "out", _PARTITIONS, 99)
    assert sorted(seen) == sorted(each.value for each in found[1:])
    assert committed_values(address, "dead", _PARTITIONS, 1) == [found[0].value]


@pytest.mark.slow
def test_kill__members_of_a_group__each_message_is_answered_once(address: str) -> None:
    total = 2000
    send(url(address, "in"), numbered(0, total))
    ends = [f"kafka://{address}?{_OPTIONS}#{topic}" for topic in ("in", "out")]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _MEMBER, *ends], stdout=subprocess.PIPE)

    running = [start()]
    try:
        for kills in range(3):
            member = running[-1]
            assert member.stdout is not None
            for _ in range(3 + 5 * kills):
                member.stdout.readline()
            member.kill()
            member.wait()
            running.append(start())
        seen = committed_values(address, "out", _PARTITIONS, total)
    finally:
        for member in running:
            member.kill()
            member.communicate()
    assert sorted(map(int, seen)) == [*range(total)]
