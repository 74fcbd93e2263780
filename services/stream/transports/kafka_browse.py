"""A look at a topic without taking part in a group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Examined, Guarantee, Message, StreamUrl
from services.stream.transports.kafka_client import (
    PATIENCE_S,
    ClientHealth,
    load_driver,
    make,
    partitions_of,
    properties,
    translate_errors,
    translated,
)
from services.stream.transports.kafka_reader import PartitionNames, converted

_MANY = 1000


class _Look:
    """An assigned consumer, without a membership, over all partitions of a place."""

    def __init__(self, place: StreamUrl, group: str = "mlctl-look") -> None:
        settings = {
            **properties(place),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        self.place, self.names, self.health = place, PartitionNames(), ClientHealth()
        self.driver = load_driver()
        self.consumer = make("Consumer", settings, self.health)

    def partitions(self) -> list[Any]:
        found = partitions_of(self.consumer, self.place, self.health)
        return [self.driver.TopicPartition(self.place.topic, number) for number in sorted(found)]

    def watermarks(self) -> Mapping[int, tuple[int, int]]:
        """By partition: the first offset there is, and the one that comes next."""
        with translate_errors(self.place.shown()):
            return {
                each.partition: self.consumer.get_watermark_offsets(each, timeout=PATIENCE_S)
                for each in self.partitions()
            }

    def assign(self, offsets: Mapping[int, int]) -> None:
        made = self.driver.TopicPartition
        self.consumer.assign([made(self.place.topic, at, offset) for at, offset in offsets.items()])

    def close(self) -> None:
        self.consumer.close()


def browse(place: StreamUrl, last: int | None) -> Iterator[Message]:
    """By partition in order; the `last` ones by the time that they were sent."""
    with closing(_Look(place)) as look:
        marks = {at: (low, high) for at, (low, high) in look.watermarks().items() if high > low}
        if last is None:
            for at, (low, high) in marks.items():
                yield from _between(look, at, low, high)
            return
        found: list[Message] = []
        for at, (low, high) in marks.items():
            found += _between(look, at, max(low, high - last), high)
        found.sort(key=lambda message: message.time_ms)
        yield from found[-last:] if last else ()


def _between(look: _Look, partition: int, first: int, end: int) -> Iterator[Message]:
    look.assign({partition: first})
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # The second call is for what came with the first one: it would wait for all of them.
        raw = look.consumer.consume(1, 0.5)
        raw += look.consumer.consume(_MANY, 0) if raw else []
        if raw:
            deadline = time.monotonic() + PATIENCE_S
        elif time.monotonic() > deadline:
            look.health.check()
            raise MlctlError(ErrorCode.BROKER_UNAVAILABLE, f"{look.place.shown()} does not answer")
        for message in converted(raw, look.names):
            if int(message.offset) < end:
                yield message
        # Where a compacted topic or a transaction ends, no message has the last offset.
        if any(_is_end(look, each) or each.offset() >= end - 1 for each in raw):
            return


def _is_end(look: _Look, raw: Any) -> bool:
    error = raw.error()
    if error is None:
        return False
    if error.name() == "_PARTITION_EOF":
        return True
    problem = translated(error, look.place.shown())
    if problem.code is not ErrorCode.BROKER_UNAVAILABLE:
        raise problem
    return False


def follow(place: StreamUrl, wait_s: float) -> Iterator[Message | None]:
    """What is sent from now on."""
    with closing(_Look(place)) as look:
        look.assign({at: high for at, (_low, high) in look.watermarks().items()})
        deadline = time.monotonic() + wait_s
        while True:
            raw = look.consumer.poll(max(deadline - time.monotonic(), 0.0))
            batch = [] if raw is None else [raw, *look.consumer.consume(_MANY, 0)]
            messages = converted(batch, look.names)
            for each in batch:
                _is_end(look, each)
            yield from messages
            if messages or time.monotonic() >= deadline:
                if not messages:
                    yield None
                deadline = time.monotonic() + wait_s


def examine(place: StreamUrl, group: str) -> Examined:
    """What the brokers say; a group that never committed is behind by all there is."""
    with closing(_Look(place, group or "mlctl-look")) as look:
        marks = look.watermarks()
        with translate_errors(place.shown()):
            found = look.consumer.list_topics(place.topic, timeout=PATIENCE_S)
            committed = look.consumer.committed(look.partitions(), timeout=PATIENCE_S)
        lag = {
            str(at.partition): max(
                marks[at.partition][1] - max(at.offset, marks[at.partition][0]), 0
            )
            for at in committed
        }
        brokers = len(found.brokers)
        return Examined(
            guarantee=Guarantee.AT_LEAST_ONCE,
            server=f"Kafka, {brokers} broker{'s' if brokers != 1 else ''}",
            messages=sum(high - low for low, high in marks.values()),
            lag=lag if group else None,
            remarks=(
                f"{len(marks)} partitions: as many processes can share the work",
                "exactly once with --exactly-once, where answers are in the same cluster",
                "offsets tell messages and lag, also those of marks and compacted messages",
            ),
        )
