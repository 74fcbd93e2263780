"""Writing to Kafka: with an idempotent producer, or in transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Commit, Outgoing, RefusedAnswersError, StreamUrl
from services.stream.transports.kafka_client import (
    PATIENCE_S,
    ClientHealth,
    load_driver,
    make,
    partitions_of,
    properties,
    translated,
)
from services.stream.transports.kafka_reader import LOST, GroupReader

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Raw

_DEFAULTS = {
    # As Java's clients: messages of a key go where those of other programs go.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
}
_LARGEST = 1_000_000  # librdkafka's message.max.bytes
# Of a message beside its key, value and headers, at most.
_FRAME = 128
# A killed process's transaction keeps others waiting for this time.
_TRANSACTION_MS = 20_000


def _size(message: Outgoing) -> int:
    headers = sum(len(name) + len(value) + 10 for name, value in message.headers)
    return len(message.value) + len(message.key or b"") + headers + _FRAME


def _largest(settings: Mapping[str, Any]) -> int:
    try:
        return int(settings.get("message.max.bytes", _LARGEST))
    except ValueError:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, "message.max.bytes is not a whole number"
        ) from None


class KafkaSender:
    """A Producer of one place, and what sends a link's answers; for one thread.

    A batch whose delivery is not known stays in the client, which goes on trying: the same
    batch again only waits for it. So a broker that comes back causes no duplicates.
    """

    def __init__(self, place: StreamUrl, topics: Iterable[str]) -> None:
        self._driver = load_driver()
        self._place = place
        self._topics = [*topics]
        self._settings = {
            **_DEFAULTS,
            **properties(place),
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._reported,
        }
        self._most = _largest(self._settings)
        self._health = ClientHealth()
        self._failed: list[KafkaError] = []
        self._under_way: object = None

    def __enter__(self) -> Self:
        self._open()
        for topic in self._topics:
            partitions_of(self._producer, self._place.named(topic), self._health)
        return self

    def _open(self) -> None:
        self._producer: Producer = make("Producer", self._settings, self._health)

    def __exit__(self, *exc_info: object) -> None:
        # What is not delivered by now was never committed.
        self._producer.purge()
        self._producer.poll(0)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        self.deliver(Commit((), messages), self._place.topic, "", mark=messages)

    def deliver(self, batch: Commit, answers: str, dead: str, mark: object) -> None:
        """Returns when all is durable; the same `mark` says that it is the same batch.

        RefusedAnswersError before anything is sent; BROKER_UNAVAILABLE if it took too long.
        """
        if mark is None or mark != self._under_way:
            self.enqueue(batch, answers, dead)
        self._under_way = mark
        left = self._producer.flush(PATIENCE_S)
        self.check_delivered()
        if left:
            raise self._late()
        self._under_way = None

    def enqueue(self, batch: Commit, answers: str, dead: str) -> None:
        """Hand it to the client."""
        half = self._most // 2
        large = [
            index
            for index, each in enumerate(batch.answers)
            if len(each.value) > half and _size(each) > self._most
        ]
        if large:
            raise RefusedAnswersError(
                dict.fromkeys(large, f"the answer is larger than {self._most} bytes")
            )
        self._put(answers, batch.answers)
        if batch.dead:
            self._put(dead, [self._cut(each) for each in batch.dead])

    def _put(self, topic: str, messages: Sequence[Outgoing]) -> None:
        produce = self._producer.produce
        for value, key, headers in messages:
            try:
                produce(topic, value, key, headers=list(headers))
            except BufferError:
                self._put_later(topic, value, key, headers)
            except self._driver.KafkaException as error:
                raise self._told(error.args[0]) from error

    def _put_later(self, topic: str, value: bytes, key: bytes | None, headers: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self._producer.poll(0.1)
            try:
                self._producer.produce(topic, value, key, headers=list(headers))
            except BufferError:
                continue
            return
        raise self._late()

    def _cut(self, dead: Outgoing) -> Outgoing:
        """A dead letter never blocks the stream: what is too large stays in the source alone."""
        if len(dead.value) <= self._most // 2 or _size(dead) <= self._most:
            return dead
        note = ("mlctl-left-out", b"%d" % len(dead.value))
        return dead._replace(value=b"", headers=(*dead.headers, note))

    def check_delivered(self) -> None:
        """Raise what the broker refused since the last call."""
        if self._failed:
            error, self._failed, self._under_way = self._failed[0], [], None
            raise self._told(error)

    def _reported(self, error: KafkaError, _message: Raw) -> None:
        if not error.name().startswith("_PURGE"):  # Of an abort: another one is why.
            self._failed.append(error)

    def _told(self, error: KafkaError) -> MlctlError:
        return translated(error, self._place.shown())

    def _late(self) -> MlctlError:
        self._health.check()
        what = f"{self._place.shown()}: no answer within {PATIENCE_S:g} s"
        return MlctlError(ErrorCode.BROKER_UNAVAILABLE, what)


class TransactionalSender(KafkaSender):
    """Answers, dead letters and the group's position in one transaction for each batch.

    A producer's id is its own. Who may commit the position is told by the member's generation,
    so that a member that was replaced cannot commit, whatever its id.
    """

    def __init__(self, place: StreamUrl, topics: Iterable[str], group: str) -> None:
        super().__init__(place, topics)
        chosen = {name: value for name, value in self._settings.items() if "transaction" in name}
        self._named = "transactional.id" in chosen
        self._settings |= {
            "transactional.id": f"mlctl-{group}-{uuid.uuid4().hex}",
            "transaction.timeout.ms": _TRANSACTION_MS,
            **chosen,
        }
        self._started = self._open_transaction = False

    def transact(
        self, batch: Commit, reader: GroupReader, answers: str, dead: str, mark: object
    ) -> None:
        """Returns when all is committed. LostPartitionsError: nothing is, or it is not known;

        then the reader starts behind what the broker says is committed, which decides it.
        """
        try:
            if self._decide(mark, reader):
                return
            positions = reader.after(batch.done)
            self._begin()
            self.enqueue(batch, answers, dead)
            self._steadily(
                lambda: self._producer.send_offsets_to_transaction(
                    positions, reader.metadata(), PATIENCE_S
                )
            )
            self._under_way = mark
            self._end()
            reader.moved(positions)
        except self._driver.KafkaException as error:
            self._failed_with(error.args[0], reader)
        except BaseException as error:
            refused = self._abort_or_leave()
            if refused is not None and isinstance(error, MlctlError):
                # After a refusal the client takes no more: it only says "erroneous state".
                raise self._told(refused) from error
            raise

    def _decide(self, mark: object, reader: GroupReader) -> bool:
        """Bring the last transaction to its end; whether it was of the same batch."""
        if self._under_way is not None:
            same = self._under_way == mark
            self._end()
            reader.forget_committed()
            if not same:  # Some of this batch may be committed by now.
                raise reader.lost()
            return True
        if self._open_transaction:
            self._abort()
        return False

    def _begin(self) -> None:
        if not self._started:
            self._producer.init_transactions(PATIENCE_S)
            self._started = True
        self._producer.begin_transaction()
        self._open_transaction = True

    def _end(self) -> None:
        self._steadily(lambda: self._producer.commit_transaction(PATIENCE_S))
        self._open_transaction, self._under_way = False, None

    def _abort(self) -> KafkaError | None:
        """Abort the open transaction; return the first error of a message that was refused.

        A refused message leaves a gap in the producer's sequence numbers, which would also fail
        the next transaction: so the producer is replaced. The delivery report that says so may
        come as late as in the abort.
        """
        refused = None
        if self._open_transaction and self._under_way is None:
            self._steadily(lambda: self._producer.abort_transaction(PATIENCE_S))
            self._open_transaction = False
            if self._failed:
                refused = self._failed[0]
                self._renew()
        return refused

    def _steadily(self, act: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                act()
            except self._driver.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _failed_with(self, error: KafkaError, reader: GroupReader) -> None:
        if error.fatal():
            if self._named and error.name() in {"_FENCED", "PRODUCER_FENCED"}:
                raise self._told(error)
            self._renew()
            raise reader.lost()
        refused = None
        if error.txn_requires_abort():
            self._under_way = None
            refused = self._abort_or_leave()
            if error.name() in LOST:
                raise reader.lost()
        raise self._told(refused or error)

    def _abort_or_leave(self) -> KafkaError | None:
        """Abort as `_abort`; if that fails the transaction stays open and is ended later."""
        try:
            return self._abort()
        except self._driver.KafkaException as error:
            if error.args[0].fatal():
                self._renew()
            return self._failed[0] if self._failed else None

    def _renew(self) -> None:
        """Replace the producer by one of the same id: its first step ends an open transaction."""
        self._started = self._open_transaction = False
        self._under_way, self._failed = None, []
        self._open()
