"""How Kafka's client is set up, and what its errors mean here."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import install_hint
from services.stream.base import StreamUrl

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# MLCTL_KAFKA_SASL_PASSWORD is the property sasl.password.
ENVIRONMENT = "MLCTL_KAFKA_"
# What a user must not choose: the guarantee stands on it.
RESERVED = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "request.required.acks",
    }
)
_DEFAULTS = {"client.id": "mlctl", "log_level": 2, "reconnect.backoff.max.ms": 2000}
# A request to the brokers that takes longer is given up, in seconds, and may be repeated.
PATIENCE_S = 20.0

# Quiet: whatever matters is also an error of ours. It is for log_level and debug of the user's.
_LOG = logging.getLogger("mlctl.kafka")
_LOG.addHandler(logging.NullHandler())

_AUTHENTICATION = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})


def load_driver() -> Any:
    """The package confluent_kafka; RUNTIME_MISSING says which extra has it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "Kafka needs the package confluent-kafka, which is not installed",
            install_hint("kafka"),
        ) from error
    return confluent_kafka


def properties(place: StreamUrl, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the user set of librdkafka's properties; the place's options go first.

    INVALID_INPUT if the place has no broker, no topic or a password, or sets what is reserved.
    """
    if not place.address or not place.topic:
        _refuse(f"{place.shown()} names no broker or no topic", "kafka://HOST:9092#TOPIC")
    if "@" in place.address:
        _refuse(
            "a place of Kafka has no user and password",
            "Set MLCTL_KAFKA_SASL_USERNAME and MLCTL_KAFKA_SASL_PASSWORD.",
        )
    chosen = {
        name.removeprefix(ENVIRONMENT).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT)
    } | dict(place.options)
    if taken := RESERVED & chosen.keys():
        _refuse(f"mlctl itself sets {', '.join(sorted(taken))}", "Leave it out.")
    return {**_DEFAULTS, **chosen, "bootstrap.servers": place.address}


def _refuse(message: str, hint: str) -> None:
    raise MlctlError(ErrorCode.INVALID_INPUT, message, hint)


class ClientHealth:
    """What the client's own threads met last: the calls themselves only time out."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """The client's `error_cb`; called from inside its poll, also for what mends itself."""
        if error.name() in _AUTHENTICATION or (
            error.name() == "_ALL_BROKERS_DOWN" and self._last is None
        ):
            self._last = error

    def check(self) -> None:
        """BROKER_UNAVAILABLE if all brokers went away since the last call, or as translated()."""
        error, self._last = self._last, None
        if error is not None:
            raise translated(error)


def make(kind: str, settings: Mapping[str, Any], health: ClientHealth) -> Any:
    """A client, `kind` is Consumer or Producer; INVALID_INPUT for a property that is none."""
    driver = load_driver()
    try:
        return getattr(driver, kind)({**settings, "error_cb": health.heard}, logger=_LOG)
    except driver.KafkaException as error:
        raise translated(error.args[0]) from error


def translated(error: KafkaError, place: str = "") -> MlctlError:
    """The error as mlctl tells it; BROKER_UNAVAILABLE is the one that is worth another try."""
    name, what = error.name(), f"{place}: {error.str()}" if place else error.str()
    if name in _AUTHENTICATION:
        hint = "Look at security.protocol, and at the sasl and ssl properties."
        return MlctlError(ErrorCode.UNAUTHENTICATED, what, hint)
    if name.endswith("AUTHORIZATION_FAILED"):
        hint = "Allow this user the topics, the group, and idempotent or transactional writes."
        return MlctlError(ErrorCode.NOT_PERMITTED, what, hint)
    if name in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}:
        hint = "Make the topic first: kafka-topics --create --topic NAME --partitions N."
        return MlctlError(ErrorCode.NOT_FOUND, what, hint)
    if name in {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}:
        hint = "Give the topic's max.message.bytes as the place's option message.max.bytes."
        return MlctlError(ErrorCode.PAYLOAD_TOO_LARGE, what, hint)
    if name in {"_FENCED", "PRODUCER_FENCED", "FENCED_INSTANCE_ID"}:
        hint = "Give each process its own transactional.id and group.instance.id, or none."
        return MlctlError(ErrorCode.JOB_RUNNING, what, hint)
    if name in {"_INVALID_ARG", "_CONFLICT"}:
        hint = "See librdkafka's CONFIGURATION.md for its properties."
        return MlctlError(ErrorCode.INVALID_INPUT, what, hint)
    if error.fatal():
        return MlctlError(ErrorCode.UNAVAILABLE, what, "Start it again: nothing is lost.")
    return MlctlError(ErrorCode.BROKER_UNAVAILABLE, what)


@contextmanager
def translate_errors(place: str) -> Iterator[None]:
    """Kafka's errors come out as mlctl's."""
    driver = load_driver()
    try:
        yield
    except driver.KafkaException as error:
        raise translated(error.args[0], place) from error


def partitions_of(client: Any, place: StreamUrl, health: ClientHealth) -> Mapping[int, Any]:
    """The partitions of the topic; NOT_FOUND, or as translated()."""
    try:
        with translate_errors(place.shown()):
            found = client.list_topics(place.topic, timeout=PATIENCE_S).topics[place.topic]
    except MlctlError as error:
        if error.code is ErrorCode.BROKER_UNAVAILABLE:
            client.poll(0)  # Why it did not answer, if the client knows.
            health.check()
        raise
    if found.error is not None:
        raise translated(found.error, place.shown())
    partitions: Mapping[int, Any] = found.partitions
    return partitions
