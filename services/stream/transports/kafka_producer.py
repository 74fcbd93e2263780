"""An idempotent producer of Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import LEFT_OUT, is_dead_letter
from mlctl.services.stream.base import Outgoing, RejectedAnswersError, StreamUrl
from mlctl.services.stream.transports.kafka_client import (
    TIMEOUT_S,
    ClientHealth,
    make_client,
    partitions_of,
    properties,
    translated,
)

_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
_DEFAULTS = {
    # As Java's clients, so that the messages of a key go where those of other programs go.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
}
_MAX_MESSAGE_BYTES = 1_000_000  # librdkafka's default of message.max.bytes
# Upper bound of a message's bytes beside its key, value and headers.
_FRAME_BYTES = 128


class KafkaProducer:
    """An idempotent producer for `topics`; for one thread.

    Messages whose delivery is not confirmed stay in the client, which keeps trying; the same
    messages again only wait for it. So a broker that comes back causes no duplicates.
    """

    def __init__(
        self, url: StreamUrl, topics: Iterable[str], defaults: Mapping[str, Any] = _NO_DEFAULTS
    ) -> None:
        self._url = url
        self._topics = [*topics]
        self.settings = {
            **_DEFAULTS,
            **defaults,
            **properties(url),
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery_error,
        }
        try:
            self._max_bytes = int(self.settings.get("message.max.bytes", _MAX_MESSAGE_BYTES))
        except ValueError:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "message.max.bytes is not a whole number"
            ) from None
        self._health = ClientHealth(url)
        # The first error of a message that a broker rejected.
        self.rejection: KafkaError | None = None
        # The messages that the client has, until they are delivered or one of them is rejected.
        self._sent: Sequence[Outgoing] | None = None

    def __enter__(self) -> Self:
        self.open()
        for topic in self._topics:
            partitions_of(self.client, self._url.with_topic(topic), self._health)
        return self

    def open(self) -> None:
        """Begin with a new client."""
        self.rejection = None
        self.client: Producer = make_client("Producer", self.settings, self._health)

    def __exit__(self, *exc_info: object) -> None:
        # Messages that are not delivered yet were never committed.
        self.client.purge()
        self.client.poll(0)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Send messages; RejectedAnswersError, or BROKER_UNAVAILABLE without an answer in time."""
        if self._sent is None or messages != self._sent:
            self.put(self._url.topic, self.fitting(messages))
        self._sent = messages
        left = self.client.flush(TIMEOUT_S)
        rejection, self.rejection = self.rejection, None
        if rejection is None and left:
            raise self._timeout()
        self._sent = None
        if rejection is not None:
            raise self.translated(rejection)

    def fitting(self, messages: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Return the messages, but dead letters that are too large without their values.

        The source still has them. RejectedAnswersError for other messages that are too large.
        """
        half, limit = self._max_bytes // 2, self._max_bytes
        large = [
            index
            for index, each in enumerate(messages)
            if len(each.content) > half and _size(each) > limit
        ]
        if not large:
            return messages
        if answers := [index for index in large if not is_dead_letter(messages[index])]:
            raise RejectedAnswersError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                dict.fromkeys(answers, f"the answer is larger than {limit:,} bytes"),
            )
        found = [*messages]
        for index in large:
            value, key, headers = found[index]
            found[index] = Outgoing(b"", key, (*headers, (LEFT_OUT, b"%d" % len(value or b""))))
        return found

    def put(self, topic: str, messages: Sequence[Outgoing]) -> None:
        """Give messages to the client; wait while its queue is full."""
        produce = self.client.produce
        for value, key, headers in messages:
            deadline = 0.0
            while True:
                try:
                    produce(topic, value, key, headers=list(headers))
                    break
                except BufferError:
                    deadline = deadline or time.monotonic() + TIMEOUT_S
                    if time.monotonic() > deadline:
                        raise self._timeout() from None
                    self.client.poll(0.1)
                except KafkaException as error:
                    raise self.translated(error.args[0]) from error

    def translated(self, error: KafkaError) -> MlctlError:
        return translated(error, self._url.redacted())

    def _on_delivery_error(self, error: KafkaError, _message: RawMessage) -> None:
        # The abort of a transaction, which follows another error, purges the rest of it.
        aborted = error.name().startswith("_PURGE") and "transactional.id" in self.settings
        if self.rejection is None and not aborted:
            self.rejection = error

    def _timeout(self) -> MlctlError:
        self._health.check()
        text = f"{self._url.redacted()}: no answer within {TIMEOUT_S:g} s"
        return MlctlError(ErrorCode.BROKER_UNAVAILABLE, text)


def _size(message: Outgoing) -> int:
    headers = sum(len(name) + len(value or b"") + 10 for name, value in message.headers)
    return len(message.content) + len(message.key or b"") + headers + _FRAME_BYTES
