"""Kafka through librdkafka: `kafka://HOST:9092#TOPIC`, idempotent or transactional."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Self

from confluent_kafka import KafkaError, KafkaException

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    LostPartitionsError,
    Message,
    StreamConnection,
    StreamStatus,
    StreamUrl,
    Transport,
)
from mlctl.services.stream.transports.bridge import bridged
from mlctl.services.stream.transports.kafka_client import (
    FENCED,
    TIMEOUT_S,
    make_client,
    partitions_of,
    translate_errors,
)
from mlctl.services.stream.transports.kafka_consumer import LOST, GroupConsumer
from mlctl.services.stream.transports.kafka_producer import KafkaProducer

# Messages that are read at once, and seconds to wait for the first of them.
_PAGE, _WAIT_S = 1000, 0.05
# For this time a killed process's open transaction keeps readers waiting.
_TRANSACTION_MS = 20_000


class TransactionalConnection(GroupConsumer):
    """A member of a group that commits answers, dead letters and position in one transaction.

    Each member has a transactional id of its own. The broker rejects the commit of a replaced
    member by its generation, whatever its id.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, request: ConnectionRequest) -> None:
        super().__init__(request)
        self._answers = request.answers.topic if request.answers else ""
        self._dead = request.dead.topic if request.dead else ""
        self._own_id = f"mlctl-{request.group}-{uuid.uuid4().hex}"
        self._sender = KafkaProducer(
            request.answers or request.source,
            [topic for topic in (self._answers, self._dead) if topic],
            {"transactional.id": self._own_id, "transaction.timeout.ms": _TRANSACTION_MS},
        )
        # Whether the producer is ready to begin a transaction, and whether it is not known if
        # its last one was committed.
        self._ready = self._unknown = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._sender)
            # Before the position is read: this ends the transaction that a killed process with the
            # same id left open.
            with translate_errors(self._url):
                self._sender.client.init_transactions(TIMEOUT_S)
            self._ready = True
            super().__enter__()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._stack.close()

    def commit(self, batch: Commit) -> None:
        if not batch.done:
            return
        positions = self.positions_after(batch.done)
        answers, dead = self._sender.fitting(batch.answers), self._sender.fitting(batch.dead)
        try:
            self._begin()
            self._sender.put(self._answers, answers)
            self._sender.put(self._dead, dead)
            member = self._consumer.consumer_group_metadata()
            self._sender.client.send_offsets_to_transaction(positions, member, TIMEOUT_S)
            self._sender.client.commit_transaction(TIMEOUT_S)
        except LostPartitionsError:
            raise
        except BaseException as error:
            self._abort()
            # After a rejected message the client only reports an "erroneous state".
            problem = self._sender.rejection
            if problem is None and isinstance(error, KafkaException):
                problem = error.args[0]
            if problem is None:
                raise
            if problem.name() in LOST:
                raise self.lost() from error
            raise self._translated(problem) from error

    def _begin(self) -> None:
        """Begin a transaction, after an error with a new producer.

        A rejected message leaves a gap in the producer's sequence numbers. The first call of a
        new producer with the same id ends the open transaction; if it is not known how, then
        LostPartitionsError: the consumer begins again after the position that is committed.
        """
        client = self._sender.client
        if not self._ready:
            client.init_transactions(TIMEOUT_S)
            self._ready = True
            if self._unknown:
                self._unknown = False
                raise self.lost()
        client.begin_transaction()

    def _abort(self) -> None:
        """End the transaction for its readers, and replace the producer."""
        try:
            if self._ready:
                self._sender.client.abort_transaction(TIMEOUT_S)
        except KafkaException:
            self._unknown = True
        rejection = self._sender.rejection  # It may have come as late as in the abort.
        self._ready = False
        self._sender.open()
        self._sender.rejection = rejection

    def _translated(self, error: KafkaError) -> MlctlError:
        # A pause of this process may have been longer than the transaction's timeout.
        if error.name() in FENCED and self._sender.settings["transactional.id"] == self._own_id:
            return MlctlError(
                ErrorCode.BROKER_UNAVAILABLE, f"{self._url.redacted()}: {error.str()}"
            )
        return self._sender.translated(error)


class KafkaTransport(Transport):
    """The transport of `kafka://`."""

    def open_connection(self, request: ConnectionRequest) -> StreamConnection:
        if request.exactly_once:
            return TransactionalConnection(request)
        return bridged(GroupConsumer(request), request)

    def open_producer(self, url: StreamUrl) -> KafkaProducer:
        return KafkaProducer(url, [url.topic])

    def browse(self, url: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        """Yield by partition in order, or the `last` messages by the time they were sent."""
        with _Browser(ConnectionRequest(url, "mlctl-browse")) as browser:
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
        with _Browser(ConnectionRequest(url, group)) as browser:
            marks, brokers = browser.watermarks(), browser.brokers()
            lag = browser.lags(marks, cached=False)
        return StreamStatus(
            Guarantee.AT_LEAST_ONCE,
            f"Kafka, brokers: {brokers}",
            sum(high - low for low, high in marks.values()),
            {str(partition): behind for partition, behind in lag.items()},
            remarks=(
                f"partitions: {len(marks)}; at most as many processes share the work",
                "exactly once with --exactly-once, if answers are in the same cluster",
                "messages and lag are counted by offsets, also those of transaction markers",
            ),
        )


transport = KafkaTransport()


class _Browser(GroupConsumer):
    """Reads all partitions of a topic without joining the group."""

    def __enter__(self) -> Self:
        self._consumer = make_client("Consumer", self._settings, self._health)
        return self

    def brokers(self) -> int:
        with translate_errors(self._url):
            return len(self._consumer.list_topics(self._url.topic, timeout=TIMEOUT_S).brokers)

    def watermarks(self) -> Mapping[int, tuple[int, int]]:
        """Return the first stored and the next offset by partition."""
        numbers = sorted(partitions_of(self._consumer, self._url, self._health))
        with translate_errors(self._url):
            return {
                number: self._consumer.get_watermark_offsets(
                    self._topic_partition(number), timeout=TIMEOUT_S
                )
                for number in numbers
            }

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        """Yield the messages of a partition with offsets from `first` to before `end`."""
        if first >= end:
            return
        self._consumer.assign([self._topic_partition(partition, first)])
        self._ends.clear()
        deadline = time.monotonic() + TIMEOUT_S
        at, name = first, str(partition)
        # The last offset may be a transaction marker or a compacted message. The client may report
        # an end that it saw before.
        while at < end and self._ends.get(name, (0, 0))[1] < end:
            found = self._fetch(_PAGE, _WAIT_S)
            if found:
                deadline = time.monotonic() + TIMEOUT_S
                at = int(found[-1].offset) + 1
            elif time.monotonic() > deadline:
                self._health.check()
                raise MlctlError(
                    ErrorCode.BROKER_UNAVAILABLE, f"{self._url.redacted()} does not answer"
                )
            yield from (each for each in found if int(each.offset) < end)
