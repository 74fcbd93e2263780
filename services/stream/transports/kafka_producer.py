"""Kafka producers: an idempotent one, and one that writes in transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Commit, Outgoing, RejectedAnswersError, StreamUrl
from services.stream.transports.kafka_client import (
    TIMEOUT_S,
    ClientHealth,
    make_client,
    partitions_of,
    properties,
    translated,
)
from services.stream.transports.kafka_consumer import LOST, GroupConsumer

_DEFAULTS = {
    # As Java's clients, so that the messages of a key go where those of other programs go.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
}
_MAX_MESSAGE_BYTES = 1_000_000  # librdkafka's default of message.max.bytes
# Upper bound of a message's bytes beside its key, value and headers.
_FRAME_BYTES = 128
# For this time a killed process's open transaction keeps readers waiting.
_TRANSACTION_MS = 20_000


def _size(message: Outgoing) -> int:
    headers = sum(len(name) + len(value) + 10 for name, value in message.headers)
    return len(message.value) + len(message.key or b"") + headers + _FRAME_BYTES


def _max_bytes(settings: Mapping[str, Any]) -> int:
    try:
        return int(settings.get("message.max.bytes", _MAX_MESSAGE_BYTES))
    except ValueError:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, "message.max.bytes is not a whole number"
        ) from None


class KafkaProducer:
    """An idempotent producer for `topics`; for one thread.

    A batch whose delivery is not confirmed stays in the client, which keeps trying; the same
    batch again only waits for it. So a broker that comes back causes no duplicates.
    """

    def __init__(self, url: StreamUrl, topics: Iterable[str]) -> None:
        self._url = url
        self._topics = [*topics]
        self._settings = {
            **_DEFAULTS,
            **properties(url),
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery_error,
        }
        self._max_bytes = _max_bytes(self._settings)
        self._health = ClientHealth(url)
        self._failed: list[KafkaError] = []
        # The batch that the client has, until it is acknowledged or a message of it failed.
        self._sent: object = None

    def __enter__(self) -> Self:
        self._open()
        for topic in self._topics:
            partitions_of(self._producer, self._url.with_topic(topic), self._health)
        return self

    def _open(self) -> None:
        self._producer: Producer = make_client("Producer", self._settings, self._health)

    def __exit__(self, *exc_info: object) -> None:
        # Messages that are not delivered yet were never committed.
        self._producer.purge()
        self._producer.poll(0)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        self.deliver(Commit((), messages), self._url.topic, "", batch_id=messages)
        self._sent = None

    def deliver(self, batch: Commit, answers: str, dead: str, batch_id: object) -> None:
        """Send answers and dead letters to these topics; return when all are durable.

        A repeated call with an equal `batch_id` does not send them again. RejectedAnswersError:
        nothing was sent; BROKER_UNAVAILABLE: no acknowledgement within the timeout.
        """
        if self._sent is None or batch_id != self._sent:
            self._enqueue(batch, answers, dead)
        self._sent = batch_id
        left = self._producer.flush(TIMEOUT_S)
        if self._failed:
            error, self._failed, self._sent = self._failed[0], [], None
            raise self._translated(error)
        if left:
            raise self._timeout()

    def acknowledged(self) -> None:
        """Forget the batch: its position is committed."""
        self._sent = None

    def _enqueue(self, batch: Commit, answers: str, dead: str) -> None:
        """Give a batch to the client."""
        half = self._max_bytes // 2
        large = [
            index
            for index, each in enumerate(batch.answers)
            if len(each.value) > half and _size(each) > self._max_bytes
        ]
        if large:
            raise RejectedAnswersError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                dict.fromkeys(large, f"the answer is larger than {self._max_bytes:,} bytes"),
            )
        self._put(answers, batch.answers)
        if batch.dead:
            self._put(dead, [self._shortened(each) for each in batch.dead])

    def _put(self, topic: str, messages: Sequence[Outgoing]) -> None:
        produce = self._producer.produce
        for value, key, headers in messages:
            try:
                produce(topic, value, key, headers=list(headers))
            except BufferError:
                self._put_when_empty(topic, value, key, headers)
            except KafkaException as error:
                raise self._translated(error.args[0]) from error

    def _put_when_empty(self, topic: str, value: bytes, key: bytes | None, headers: Any) -> None:
        """Wait until the client's queue has room."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            self._producer.poll(0.1)
            try:
                self._producer.produce(topic, value, key, headers=list(headers))
            except BufferError:
                continue
            return
        raise self._timeout()

    def _shortened(self, dead: Outgoing) -> Outgoing:
        """Drop the value of a dead letter that is too large: the source still has it."""
        if len(dead.value) <= self._max_bytes // 2 or _size(dead) <= self._max_bytes:
            return dead
        note = ("mlctl-left-out", b"%d" % len(dead.value))
        return dead._replace(value=b"", headers=(*dead.headers, note))

    def _on_delivery_error(self, error: KafkaError, _message: RawMessage) -> None:
        if not error.name().startswith("_PURGE"):  # An abort, whose cause is another error.
            self._failed.append(error)

    def _translated(self, error: KafkaError) -> MlctlError:
        return translated(error, self._url.redacted())

    def _timeout(self) -> MlctlError:
        self._health.check()
        text = f"{self._url.redacted()}: no answer within {TIMEOUT_S:g} s"
        return MlctlError(ErrorCode.BROKER_UNAVAILABLE, text)


class _State(Enum):
    """State of a transactional producer."""

    NEW = auto()  # init_transactions() was not called
    READY = auto()  # no transaction is open
    OPEN = auto()  # messages may have been sent; it can be aborted
    COMMITTING = auto()  # the commit was requested, and its result is not known


class TransactionalProducer(KafkaProducer):
    """Commits answers, dead letters and the group's position in one transaction per batch.

    Each producer has a transactional id of its own. The member's generation fences the commit of
    a replaced member, whatever its id.
    """

    def __init__(self, url: StreamUrl, topics: Iterable[str], group: str) -> None:
        super().__init__(url, topics)
        chosen = {name: value for name, value in self._settings.items() if "transaction" in name}
        self._chosen_id = "transactional.id" in chosen
        self._settings |= {
            "transactional.id": f"mlctl-{group}-{uuid.uuid4().hex}",
            "transaction.timeout.ms": _TRANSACTION_MS,
            **chosen,
        }
        self._state = _State.NEW

    def transact(self, batch: Commit, consumer: GroupConsumer, answers: str, dead: str) -> None:
        """Commit a batch; it may be repeated after an error.

        LostPartitionsError: nothing is committed, or it is not known whether it is. Then the
        consumer begins after the position that the broker has committed.
        """
        try:
            if self._state is _State.COMMITTING:
                self._confirm(batch, consumer)
                return
            self._abort()
            positions = consumer.positions_after(batch.done)
            self._begin()
            self._enqueue(batch, answers, dead)
            self._retried(
                lambda: self._producer.send_offsets_to_transaction(
                    positions, consumer.metadata(), TIMEOUT_S
                )
            )
            self._state, self._sent = _State.COMMITTING, batch.done
            self._end()
            consumer.set_committed(positions)
        except KafkaException as error:
            self._raise(error.args[0], consumer)
        except BaseException as error:
            rejected = self._try_abort()
            if rejected is not None and isinstance(error, MlctlError):
                # After a rejected message the client only reports an "erroneous state".
                raise self._translated(rejected) from error
            raise

    def _confirm(self, batch: Commit, consumer: GroupConsumer) -> None:
        """End the commit whose result is not known; LostPartitionsError for another batch."""
        same = self._sent == batch.done
        self._end()
        consumer.forget_committed()
        if not same:  # Some messages of this batch may have been committed.
            raise consumer.lost()

    def _begin(self) -> None:
        if self._state is _State.NEW:
            self._producer.init_transactions(TIMEOUT_S)
        self._state = _State.READY
        self._producer.begin_transaction()
        self._state = _State.OPEN

    def _end(self) -> None:
        self._retried(lambda: self._producer.commit_transaction(TIMEOUT_S))
        self._state, self._sent = _State.READY, None

    def _abort(self) -> KafkaError | None:
        """Abort an open transaction; return the first error of a rejected message.

        A rejected message leaves a gap in the producer's sequence numbers, which would also fail
        the next transaction, so the producer is replaced. The delivery report may arrive as late
        as in the abort.
        """
        if self._state is not _State.OPEN:
            return None
        self._retried(lambda: self._producer.abort_transaction(TIMEOUT_S))
        self._state = _State.READY
        if not self._failed:
            return None
        rejected = self._failed[0]
        self._replace()
        return rejected

    def _try_abort(self) -> KafkaError | None:
        """Abort as `_abort`; if that fails, the transaction stays open and is aborted later."""
        try:
            return self._abort()
        except KafkaException as error:
            rejected = self._failed[0] if self._failed else None
            if error.args[0].fatal():
                self._replace()
            return rejected

    def _retried(self, act: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                act()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _raise(self, error: KafkaError, consumer: GroupConsumer) -> None:
        """Bring the producer back to a usable state, and raise the error."""
        if error.fatal():
            if self._chosen_id and error.name() in {"_FENCED", "PRODUCER_FENCED"}:
                raise self._translated(error)
            self._replace()
            raise consumer.lost()
        rejected = None
        if error.txn_requires_abort():
            self._state, self._sent = _State.OPEN, None
            rejected = self._try_abort()
            if error.name() in LOST:
                raise consumer.lost()
        raise self._translated(rejected or error)

    def _replace(self) -> None:
        """Replace the producer by one of the same id, which ends an open transaction first."""
        self._state = _State.NEW
        self._sent, self._failed = None, []
        self._open()
