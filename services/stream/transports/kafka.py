"""Kafka through librdkafka: `kafka://HOST:9092#TOPIC`, idempotent or transactional."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any, Self

from confluent_kafka import TopicPartition

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    Message,
    StreamConnection,
    StreamStatus,
    StreamUrl,
    Transport,
)
from services.stream.transports.kafka_client import (
    TIMEOUT_S,
    ClientHealth,
    make_client,
    partitions_of,
    properties,
    translate_errors,
    translated,
)
from services.stream.transports.kafka_consumer import GroupConsumer, PartitionNames, converted
from services.stream.transports.kafka_producer import KafkaProducer, TransactionalProducer

_PAGE = 1000


class KafkaConnection(GroupConsumer):
    """A member of a group with a producer in the same cluster."""

    def __init__(self, request: ConnectionRequest) -> None:
        super().__init__(request)
        self._answers = request.answers.topic if request.answers else ""
        self._dead = request.dead.topic if request.dead else ""
        topics = [topic for topic in (self._answers, self._dead) if topic]
        url = request.answers or request.source
        self._sender: KafkaProducer = KafkaProducer(url, topics)
        if request.exactly_once:
            self.guarantee = Guarantee.EXACTLY_ONCE
            self._sender = TransactionalProducer(url, topics, request.group)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._sender)
            super().__enter__()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._stack.close()

    def commit(self, batch: Commit) -> None:
        if not batch.done:
            return
        if isinstance(self._sender, TransactionalProducer):
            self._sender.transact(batch, self, self._answers, self._dead)
            return
        self.positions_after(batch.done)  # Nothing is sent for messages of lost partitions.
        self._sender.deliver(batch, self._answers, self._dead, batch_id=batch.done)
        super().commit(batch)
        self._sender.acknowledged()


class KafkaTransport(Transport):
    """The transport of `kafka://`."""

    def open_connection(self, request: ConnectionRequest) -> StreamConnection:
        if request.answers or request.dead:
            return KafkaConnection(request)
        return GroupConsumer(request)

    def open_producer(self, url: StreamUrl) -> KafkaProducer:
        return KafkaProducer(url, [url.topic])

    def browse(self, url: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        """Yield by partition in order, or the `last` messages by the time they were sent."""
        with closing(_Browser(url)) as browser:
            marks = browser.watermarks()
            if last is None:
                for at, (low, high) in marks.items():
                    yield from browser.read(at, low, high)
                return
            found: list[Message] = []
            for at, (low, high) in marks.items():
                found += browser.read(at, max(low, high - last), high)
            found.sort(key=lambda message: message.time_ms)
            yield from found[-last:] if last else ()

    def status(self, url: StreamUrl, group: str) -> StreamStatus:
        """Return the state; a group that never committed has all messages as its lag."""
        with closing(_Browser(url, group)) as browser:
            marks = browser.watermarks()
            with translate_errors(url):
                cluster = browser.consumer.list_topics(url.topic, timeout=TIMEOUT_S)
                committed = browser.consumer.committed(browser.partitions(), timeout=TIMEOUT_S)
        lag = {
            str(at.partition): max(
                marks[at.partition][1] - max(at.offset, marks[at.partition][0]), 0
            )
            for at in committed
        }
        return StreamStatus(
            Guarantee.AT_LEAST_ONCE,
            f"Kafka, brokers: {len(cluster.brokers)}",
            sum(high - low for low, high in marks.values()),
            lag,
            remarks=(
                f"partitions: {len(marks)}; at most as many processes share the work",
                "exactly once with --exactly-once, if answers are in the same cluster",
                "messages and lag are counted by offsets, also those of transaction markers",
            ),
        )


transport = KafkaTransport()


class _Browser:
    """Reads all partitions of a topic without joining a group."""

    def __init__(self, url: StreamUrl, group: str = "mlctl-browse") -> None:
        settings = {
            **properties(url),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        self._url, self._health = url, ClientHealth(url)
        self.names = PartitionNames()
        self.consumer = make_client("Consumer", settings, self._health)

    def close(self) -> None:
        self.consumer.close()

    def partitions(self) -> list[TopicPartition]:
        numbers = partitions_of(self.consumer, self._url, self._health)
        return [TopicPartition(self._url.topic, number) for number in sorted(numbers)]

    def watermarks(self) -> Mapping[int, tuple[int, int]]:
        """Return the first stored and the next offset by partition."""
        with translate_errors(self._url):
            return {
                each.partition: self.consumer.get_watermark_offsets(each, timeout=TIMEOUT_S)
                for each in self.partitions()
            }

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        """Yield the messages of a partition with offsets from `first` to before `end`."""
        if first >= end:
            return
        self.consumer.assign([TopicPartition(self._url.topic, partition, first)])
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            # One call for both would wait for a full page.
            raw = self.consumer.consume(1, 0.5)
            raw += self.consumer.consume(_PAGE, 0) if raw else []
            if raw:
                deadline = time.monotonic() + TIMEOUT_S
            elif time.monotonic() > deadline:
                self._health.check()
                raise MlctlError(
                    ErrorCode.BROKER_UNAVAILABLE, f"{self._url.redacted()} does not answer"
                )
            at_end = self._check(raw)
            for message in converted(raw, self.names):
                if int(message.offset) < end:
                    yield message
            # The last offset may be a transaction marker or a compacted message.
            if at_end or any(each.offset() >= end - 1 for each in raw if each.error() is None):
                return

    def _check(self, raw: list[Any]) -> bool:
        """Raise a permanent error; return whether a partition's end was reached."""
        at_end = False
        for each in raw:
            if (error := each.error()) is None:
                continue
            if error.name() == "_PARTITION_EOF":
                at_end = True
                continue
            problem = translated(error, self._url.redacted())
            if problem.code is not ErrorCode.BROKER_UNAVAILABLE:
                raise problem
        return at_end
