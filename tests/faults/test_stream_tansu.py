"""Kafka's transactions on Tansu: positions in transactions, after kills and aborts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import Commit, ConnectionRequest, Guarantee, Outgoing, StreamUrl
from mlctl.services.stream.transports.kafka import TransactionalConnection, transport
from tests.services.stream.contract import answered, numbered, send, take
from tests.support.tansu import committed_values, create_topics, tansu_broker
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.serial]

_PARTITIONS = 2
_OPTIONS = "session.timeout.ms=6000&heartbeat.interval.ms=500&transaction.timeout.ms=6000"
_TOPICS = ("in", "out", "dead")

_MEMBER = """
import os, signal, sys
from contextlib import suppress
from mlctl.services.stream.base import Commit, ConnectionRequest, LostPartitionsError, StreamUrl
from mlctl.services.stream.transports.kafka import transport
from tests.services.stream.contract import answered

source, answers = map(StreamUrl.parse, sys.argv[1:3])
step, turns = sys.argv[3], int(sys.argv[4])

def passed(name):
    global turns
    if name == step:
        turns -= 1
        if turns == 0:
            os.kill(os.getpid(), signal.SIGKILL)

request = ConnectionRequest(source, "g", answers, exactly_once=True)
with transport.open_connection(request) as member:
    while True:
        if found := member.poll(10, 0.2):
            passed("polled")
            with suppress(LostPartitionsError):
                member.commit(Commit(found, answered(found)))
                passed("committed")
"""


@pytest.fixture
def address() -> Iterator[str]:
    with tansu_broker() as found:
        create_topics(found, _TOPICS, _PARTITIONS)
        yield found


def url(address: str, topic: str) -> StreamUrl:
    return StreamUrl.parse(f"kafka://{address}?{_OPTIONS}#{topic}")


def test_transaction__aborted_and_repeated__is_committed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, answers, dead = (url(address, topic) for topic in _TOPICS)
    send(source, numbered(0, 100))
    request = ConnectionRequest(source, "g", answers, dead, exactly_once=True)
    with transport.open_connection(request) as member:
        assert isinstance(member, TransactionalConnection)
        assert member.guarantee is Guarantee.EXACTLY_ONCE
        found = take(member, 100)
        batch = Commit(found, answered(found[1:]), [Outgoing(found[0].value)])

        put = member._sender.put

        def fail(topic: str, messages: Sequence[Outgoing]) -> None:
            put(topic, messages)
            if topic == answers.topic:
                return
            assert member._sender.client.flush(10) == 0, "the broker has the answers"
            raise MlctlError(ErrorCode.BROKER_UNAVAILABLE, "after the answers were sent")

        with monkeypatch.context() as patch:
            patch.setattr(member._sender, "put", fail)
            with pytest.raises(MlctlError, match="after the answers were sent"):
                member.commit(batch)
        member.commit(batch)
    # Tansu also shows the messages of aborted transactions to readers with read_committed.
    seen = committed_values(address, "out", _PARTITIONS, 2 * 99)
    assert {*seen} == {each.value for each in found[1:]}


def test_transaction__left_open_by_a_killed_process__ends_when_the_next_one_starts(
    address: str,
) -> None:
    source, answers, _dead = (url(address, topic) for topic in _TOPICS)
    answers = replace(answers, options={**answers.options, "transactional.id": "one"})
    send(source, numbered(0, 20))
    request = ConnectionRequest(source, "g", answers, exactly_once=True)
    with transport.open_connection(request) as killed:
        assert isinstance(killed, TransactionalConnection)
        found = take(killed, 20)
        killed._begin()
        killed._sender.put("out", answered(found))
        assert killed._sender.client.flush(10) == 0
        # Kafka rejects the commit; Tansu does not answer it.
        with transport.open_connection(request), pytest.raises(KafkaException):
            killed._sender.client.commit_transaction(3)


def test_kill__before_and_after_transactions__each_message_is_answered_once(address: str) -> None:
    total = 600
    send(url(address, "in"), numbered(0, total))
    ends = [f"kafka://{address}?{_OPTIONS}#{topic}" for topic in ("in", "out")]

    def start(step: str, turns: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _MEMBER, *ends, step, str(turns)])

    for step, turns in (("polled", 3), ("committed", 5), ("polled", 8)):
        with start(step, turns) as killed:
            assert killed.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    with start("", 0) as last:
        try:
            seen = committed_values(address, "out", _PARTITIONS, total)
        finally:
            last.kill()
    assert sorted(map(int, seen)) == [*range(total)]
