"""Kafka: the contract and the faults, over TCP with librdkafka's mock brokers.

What they cannot show runs with MLCTL_KAFKA=HOST:PORT against a real cluster, and with
MLCTL_KAFKA=noida against noida-db.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    LostPartitionsError,
    Message,
    Outgoing,
    RejectedAnswersError,
    StreamConnection,
    StreamUrl,
)
from mlctl.services.stream.transports import kafka_producer
from mlctl.services.stream.transports.kafka import KafkaTransport, transport
from mlctl.services.stream.transports.kafka_consumer import GroupConsumer
from tests.services.stream.contract import (
    Broker,
    Places,
    TransportContract,
    answer,
    answered,
    numbered,
    numbers,
    read,
    send,
    take,
)
from tests.support.kafka import Api, MockKafka, Refusal
from tests.support.tansu import noida_broker
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from confluent_kafka import Producer

_REAL = os.environ.get("MLCTL_KAFKA")
OPTIONS = "session.timeout.ms=1400&heartbeat.interval.ms=50&fetch.wait.max.ms=20"


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _REAL
    if _REAL != "noida":
        yield
        return
    with noida_broker(tmp_path_factory.mktemp("noida")) as _REAL:
        yield


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    cluster = MockKafka()
    yield cluster
    Sharing.clients.pop(cluster.address, None)
    cluster.close()


class Sharing(kafka_producer.KafkaProducer):
    """What the tests send with: a client's first message waits half a second for its number."""

    clients: ClassVar[dict[str, Producer]] = {}

    def open(self) -> None:
        address = self.settings["bootstrap.servers"]
        if address not in self.clients:
            super().open()
            self.clients[address] = self.client
        self.client = self.clients[address]

    def __exit__(self, *exc_info: object) -> None:
        """Purge nothing: it could be a message of the next one, which has the same client."""


@pytest.fixture(autouse=True)
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_producer(_transport: KafkaTransport, place: StreamUrl) -> Sharing:
        return Sharing(place, [place.topic])

    monkeypatch.setattr(KafkaTransport, "open_producer", open_producer)


def places_of(
    kafka: MockKafka, partitions: int | None = None, options: str = ""
) -> Callable[[str], StreamUrl]:
    def place(name: str) -> StreamUrl:
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        kafka.create(topic, partitions)
        return StreamUrl.parse(f"kafka://{kafka.address}?{OPTIONS}{options}#{topic}")

    return place


class TestKafka(TransportContract):
    """At least once."""

    @pytest.fixture
    def broker(self, kafka: MockKafka) -> Broker:
        return Broker(places_of(kafka), Guarantee.AT_LEAST_ONCE, takes_over=False, fences=False)


@pytest.mark.slow
@pytest.mark.skipif(_REAL is None, reason="MLCTL_KAFKA=HOST:PORT names a real cluster")
@pytest.mark.usefixtures("real_cluster")
class TestRealTransactions(TransportContract):
    """Exactly once: offsets in transactions, and fencing, which the mock does not have."""

    @pytest.fixture(params=["range", "cooperative-sticky"])
    def broker(self, request: pytest.FixtureRequest) -> Broker:
        return Broker(
            real_places(f"partition.assignment.strategy={request.param}"),
            Guarantee.EXACTLY_ONCE,
            exactly_once=True,
            takes_over=False,
            fences=False,
        )

    @pytest.mark.parametrize("exactly_once", [True, False])
    def test_kafka__revoked_member__commits_what_is_in_flight(self, exactly_once: bool) -> None:
        places = Places(*(real_places("", partitions=2)(name) for name in "abc"))
        share_two_partitions(places, exactly_once=exactly_once)
        assert numbers(read(places.answers)) == [*range(240)]

    def test_kafka__aborted_transaction__shows_nothing(self) -> None:
        small = "message.max.bytes=5000000"  # The broker's own limit is smaller.
        places = Places(*(real_places(small)(name) for name in "abc"))
        send(places.source, numbered(0, 20))
        with link_of(places, exactly_once=True) as link:
            found = take(link, 20)
            answers = answered(found)
            large = [*answers[:-1], answers[-1]._replace(value=b"x" * 4_000_000)]
            with pytest.raises(MlctlError) as refused:
                link.commit(Commit(found, large))
            assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert read(places.answers) == []
            link.commit(Commit(found, answers))
        assert numbers(read(places.answers)) == [*range(20)]

    def test_kafka__replaced_member__is_fenced(self) -> None:
        places = Places(*(real_places("max.poll.interval.ms=6000")(name) for name in "abc"))
        wanted = ConnectionRequest(places.source, "g", places.answers, exactly_once=True)
        send(places.source, numbered(0, 50))
        with transport.open_connection(wanted) as silent:
            held = take(silent, 50)
            with transport.open_connection(wanted) as heir:
                answer(heir, take(heir, 50))
                with pytest.raises(LostPartitionsError):
                    answer(silent, held)
        assert numbers(read(places.answers)) == [*range(50)]


def real_places(options: str, partitions: int = 3) -> Callable[[str], StreamUrl]:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    def place(name: str) -> StreamUrl:
        topic = f"mlctl-{name}-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": _REAL or ""})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        # The controller knows it before the broker does.
        wait_until(lambda: len(admin.list_topics(topic, 30).topics[topic].partitions) == partitions)
        return StreamUrl.parse(f"kafka://{_REAL}?session.timeout.ms=6000&{options}#{topic}")

    return place


@pytest.fixture
def places(kafka: MockKafka) -> Places:
    return Places(*(places_of(kafka)(name) for name in ("in", "out", "dead")))


def link_of(places: Places, *, exactly_once: bool = False) -> StreamConnection:
    return transport.open_connection(
        ConnectionRequest(
            places.source, "g", places.answers, places.dead, exactly_once=exactly_once
        )
    )


class InFlight:
    """A listener as the engine is one: it commits what is on its way."""

    def __init__(self, link: StreamConnection) -> None:
        self.link = link
        self.flight: list[Message] = []
        self.revocations: list[list[str]] = []
        self.losses: list[list[str]] = []
        link.listen(self)

    def revoked(self, partitions: Sequence[str]) -> None:
        self.revocations.append(sorted(partitions))
        flight, self.flight = self.flight, []
        if flight:
            with suppress(LostPartitionsError):
                answer(self.link, flight)

    def lost(self, partitions: Sequence[str]) -> None:
        self.losses.append(sorted(partitions))
        self.flight.clear()


def share_two_partitions(places: Places, *, exactly_once: bool = False) -> InFlight:
    """A second member comes while the first one has a batch on its way; answers are made to all.

    What the first one was told.
    """
    send(places.source, numbered(0, 200))
    with ExitStack() as stack:
        first = stack.enter_context(link_of(places, exactly_once=exactly_once))
        member = InFlight(first)
        member.flight = take(first, 200)
        second = stack.enter_context(link_of(places, exactly_once=exactly_once))

        seen: set[int] = set()

        def both_work() -> bool:
            for link in (first, second):
                if found := link.poll(100, 0.02):
                    with suppress(LostPartitionsError):
                        answer(link, found)
                        seen.update(numbers(found))
            return len(first.lag()) == len(second.lag()) == 1

        wait_until(both_work)
        assert first.lag().keys() != second.lag().keys()
        send(places.source, numbered(200, 240))
        wait_until(lambda: both_work() and seen >= {*range(200, 240)})
    return member


def test_kafka__new_member__shares_the_partitions(kafka: MockKafka) -> None:
    for _ in range(5):
        places = Places(*(places_of(kafka, 2)(name) for name in ("in", "out", "dead")))
        member = share_two_partitions(places)
        # The mock takes no commit while members come: the batch in flight is answered again.
        assert {*numbers(read(places.answers))} == {*range(240)}
        # It also drops a member that joins again 30 ms late, as a busy machine makes it.
        if not member.losses:
            break
    assert member.revocations[0] == ["0", "1"]


def test_kafka__aborted_transaction__is_begun_again(kafka: MockKafka, places: Places) -> None:
    send(places.source, numbered(0, 20))
    with link_of(places, exactly_once=True) as link:
        assert link.guarantee is Guarantee.EXACTLY_ONCE
        found = take(link, 20)
        batch = Commit(found[1:], answered(found[1:]), [Outgoing(found[0].value)])
        kafka.refuse(Api.PRODUCE, *[Refusal.MESSAGE_TOO_LARGE] * 10)
        with pytest.raises(MlctlError) as refused:
            link.commit(batch)
        assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        kafka.obey(Api.PRODUCE)
        link.commit(batch)
    assert numbers(read(places.answers)) == numbers(found[1:])
    assert numbers(read(places.dead)) == numbers(found[:1])


def test_transaction__rejected_before_its_delivery_report__the_next_one_commits(
    kafka: MockKafka, places: Places
) -> None:
    send(places.source, numbered(0, 20))
    with link_of(places, exactly_once=True) as link:
        found = take(link, 20)
        # The broker refuses the first of them while the others are still handed to the client.
        many = [Outgoing(b"x" * 1000)] * 30_000
        kafka.refuse(Api.PRODUCE, *[Refusal.MESSAGE_TOO_LARGE] * 10)
        with pytest.raises(MlctlError) as refused:
            link.commit(Commit(found, [*answered(found), *many]))
        assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        kafka.obey(Api.PRODUCE)
        link.commit(Commit(found, answered(found)))
    assert numbers(read(places.answers)) == [*range(20)]


def test_producer__message_was_purged__is_not_taken_for_sent(places: Places) -> None:
    with kafka_producer.KafkaProducer(places.answers, [places.answers.topic]) as producer:
        producer.put(places.answers.topic, [Outgoing(b"1")])
        producer.client.purge()
        with pytest.raises(MlctlError):
            producer.publish([])


def test_redis__entries_of_a_lost_member__are_delivered_again(
    kafka: MockKafka, places: Places
) -> None:
    send(places.source, numbered(0, 30))
    with link_of(places) as link:
        first = take(link, 10)
        answer(link, first)
        held = take(link, 10)
        kafka.refuse(Api.OFFSET_COMMIT, Refusal.ILLEGAL_GENERATION)
        with pytest.raises(LostPartitionsError):
            answer(link, held)
        with pytest.raises(LostPartitionsError):
            answer(link, held)
        rest = take(link, 20)
        assert numbers([*first, *rest]) == [*range(30)]
        answer(link, rest)
        assert sum(link.lag().values()) == 0


def test_group_lag__transaction_marks_at_the_end__are_committed_for_the_other_members(
    kafka: MockKafka,
) -> None:
    source = places_of(kafka, partitions=1)("in")
    send(source, numbered(0, 5))
    with GroupConsumer(ConnectionRequest(source, "g")) as reader:
        found = take(cast(StreamConnection, reader), 5)
        # The mock writes no marks: as if two of them followed the messages.
        reader._ends["0"] = (5, 7)
        assert reader.group_lag() == 5, "messages are left, and the marks are not committed"
        reader.commit(Commit(found))
        assert reader.group_lag() == 0
        (committed,) = reader._consumer.committed([reader._topic_partition(0)], timeout=20)
        assert committed.offset == 7


def test_contract__message_too_large__others_are_answered(places: Places) -> None:
    send(places.source, numbered(0, 3))
    small = replace(places.source, options={**places.source.options, "message.max.bytes": "2000"})
    narrow = Places(
        small, small.with_topic(places.answers.topic), small.with_topic(places.dead.topic)
    )
    with link_of(narrow) as link:
        found = take(link, 3)
        answers = [each._replace(value=b"x" * 1800) for each in answered(found)]
        answers[1] = answers[1]._replace(value=b"x" * 2001)
        with pytest.raises(RejectedAnswersError) as refused:
            link.commit(Commit(found, answers))
        assert list(refused.value.rejected) == [1]
        assert read(places.answers) == []
        letter = Outgoing(b"y" * 3000, b"key", (("mlctl-error", b"large"),))
        link.commit(Commit(found, [answers[0], answers[2]], [letter]))
    assert len(read(places.answers)) == 2
    (dead,) = read(places.dead)
    assert (dead.value, dead.key) == (b"", b"key")
    assert dict(dead.headers) == {"mlctl-error": b"large", "mlctl-left-out": b"3000"}


@pytest.fixture
def unsteady() -> Iterator[MockKafka]:
    cluster = MockKafka()
    yield cluster
    Sharing.clients.pop(cluster.address, None)
    cluster.close()


def test_kafka__brokers_come_back__no_duplicates(
    unsteady: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(*(places_of(unsteady)(name) for name in ("in", "out", "dead")))
    send(places.source, numbered(0, 20))
    patient = {"session.timeout.ms": "60000", "reconnect.backoff.max.ms": "100"}
    source = replace(places.source, options={**places.source.options, **patient})
    answers = source.with_topic(places.answers.topic)
    with link_of(replace(places, source=source, answers=answers)) as link:
        found = take(link, 20)
        answer(link, found[:1])
        monkeypatch.setattr(kafka_producer, "TIMEOUT_S", 0.2)
        unsteady.down()
        try:
            for _ in range(2):
                with pytest.raises(MlctlError) as away:
                    answer(link, found[1:])
                assert away.value.code is ErrorCode.BROKER_UNAVAILABLE
                assert source.address in away.value.message
            with pytest.raises(MlctlError) as away:
                wait_until(lambda: link.poll(10, 0.1))
            assert away.value.code is ErrorCode.BROKER_UNAVAILABLE
        finally:
            unsteady.up()
        monkeypatch.undo()
        answer(link, found[1:])
    assert numbers(read(places.answers)) == [*range(20)]


_VICTIM = """
import sys, time
from mlctl.services.stream.base import ConnectionRequest, StreamUrl
from mlctl.services.stream.transports.kafka import transport
from tests.services.stream.contract import answer, take

source, answers = map(StreamUrl.parse, sys.argv[1:])
with transport.open_connection(ConnectionRequest(source, "g", answers)) as link:
    found = take(link, 20)
    answer(link, found[:5])
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_kafka__member_killed__another_continues(kafka: MockKafka) -> None:
    source, answers = (places_of(kafka, partitions=1)(name) for name in ("in", "out"))
    send(source, numbered(0, 30))
    options = "&".join(f"{name}={value}" for name, value in source.options.items())
    texts = [f"kafka://{kafka.address}?{options}#{each.topic}" for each in (source, answers)]
    command = [sys.executable, "-c", _VICTIM, *texts]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"ready\n"
        finally:
            victim.kill()
    with transport.open_connection(ConnectionRequest(source, "g", answers)) as link:
        answer(link, take(link, 25))
    assert numbers(read(answers)) == [*range(30)]
