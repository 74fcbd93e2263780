"""Kafka, by librdkafka: groups, idempotent or transactional answers, a look at topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Self

from services.stream.base import (
    Commit,
    Examined,
    Guarantee,
    LinkRequest,
    Message,
    RebalanceListener,
    StreamConnection,
    StreamUrl,
    Transport,
)
from services.stream.transports import kafka_browse
from services.stream.transports.kafka_reader import GroupReader
from services.stream.transports.kafka_sender import KafkaSender, TransactionalSender


class KafkaLink:
    """A Link, Rebalancing and Pausable: a member of a group, and a producer beside it."""

    def __init__(self, request: LinkRequest) -> None:
        self._answers = request.answers.topic if request.answers else ""
        self._dead = request.dead.topic if request.dead else ""
        self._reader = GroupReader(request)
        topics = [topic for topic in (self._answers, self._dead) if topic]
        place = request.answers or request.source
        self._sender: KafkaSender
        self._transactions: TransactionalSender | None = None
        if request.exactly_once:
            self.guarantee = Guarantee.EXACTLY_ONCE
            self._transactions = TransactionalSender(place, topics, request.group)
            self._sender = self._transactions
        else:
            self.guarantee = Guarantee.AT_LEAST_ONCE
            self._sender = KafkaSender(place, topics)
        # What waits for nothing but its acknowledgement: it is not sent again.
        self._delivered: Sequence[Message] | None = None
        # Called for each batch, and nothing to add.
        self.poll = self._reader.poll
        self.lag = self._reader.lag
        self.group_lag = self._reader.group_lag
        self.pause = self._reader.pause
        self.resume = self._reader.resume

    def listen(self, listener: RebalanceListener) -> None:
        self._reader.listen(listener)

    @property
    def takeover_s(self) -> float:
        """As the reader's."""
        return self._reader.takeover_s

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._sender)
            stack.enter_context(self._reader)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def commit(self, batch: Commit) -> None:
        if not batch.done:
            return
        if self._transactions is not None:
            self._transactions.transact(batch, self._reader, self._answers, self._dead, batch.done)
            return
        self._reader.after(batch.done)  # Nothing is sent for what is another's.
        if self._delivered is None or self._delivered != batch.done:
            self._sender.deliver(batch, self._answers, self._dead, batch.done)
        self._delivered = batch.done
        self._reader.acknowledge(batch.done)
        self._delivered = None


class KafkaTransport:
    """A Transport, Browsable."""

    def open_link(self, request: LinkRequest) -> StreamConnection:
        return KafkaLink(request)

    def open_consumer(self, request: LinkRequest) -> GroupReader:
        return GroupReader(request)

    def open_producer(self, place: StreamUrl) -> KafkaSender:
        return KafkaSender(place, [place.topic])

    def browse(self, place: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        return kafka_browse.browse(place, last)

    def follow(self, place: StreamUrl, wait_s: float) -> Iterator[Message | None]:
        return kafka_browse.follow(place, wait_s)

    def examine(self, place: StreamUrl, group: str) -> Examined:
        return kafka_browse.examine(place, group)


transport: Transport = KafkaTransport()
