"""Settings of librdkafka's clients, and the translation of their errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import StreamUrl

# MLCTL_KAFKA_SASL_PASSWORD is the property sasl.password.
ENVIRONMENT = "MLCTL_KAFKA_"
# Properties that the guarantee depends on.
_RESERVED = frozenset(
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
# Seconds after which a request is given up; it may be repeated.
TIMEOUT_S = 20.0

# Without a handler: errors that matter are raised. For users who set log_level or debug.
_LOG = logging.getLogger("mlctl.kafka")
_LOG.addHandler(logging.NullHandler())

_AUTHENTICATION = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})
# Another process has the same transactional.id or group.instance.id.
FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "FENCED_INSTANCE_ID"})
# Codes and hints by the names of librdkafka's errors.
_PERMANENT = (
    (
        _AUTHENTICATION,
        ErrorCode.UNAUTHENTICATED,
        "Check security.protocol and the sasl and ssl properties.",
    ),
    (
        {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"},
        ErrorCode.NOT_FOUND,
        "Create the topic: kafka-topics --create --topic NAME --partitions N.",
    ),
    (
        {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"},
        ErrorCode.PAYLOAD_TOO_LARGE,
        "Set the URL's option message.max.bytes to the topic's max.message.bytes.",
    ),
    (
        FENCED,
        ErrorCode.JOB_RUNNING,
        "Give each process its own transactional.id and group.instance.id, or none.",
    ),
    (
        {"_INVALID_ARG", "_CONFLICT"},
        ErrorCode.INVALID_INPUT,
        "See librdkafka's CONFIGURATION.md for its properties.",
    ),
)


def properties(url: StreamUrl, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the user's librdkafka properties: options of the URL, then environment variables.

    INVALID_INPUT if the URL has no broker, no topic or a password, or sets a reserved property.
    """
    url.check_topic("kafka://HOST:9092#TOPIC")
    if "@" in url.address:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "a kafka:// URL has no user name and password",
            "Set MLCTL_KAFKA_SASL_USERNAME and MLCTL_KAFKA_SASL_PASSWORD.",
        )
    chosen = {
        name.removeprefix(ENVIRONMENT).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT)
    } | dict(url.options)
    if reserved := _RESERVED & chosen.keys():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{', '.join(sorted(reserved))} cannot be set: the guarantee depends on it",
            "Remove the option.",
        )
    return {**_DEFAULTS, **chosen, "bootstrap.servers": url.address}


class ClientHealth:
    """The last error of the threads of a client of `url`; the calls themselves only time out."""

    def __init__(self, url: StreamUrl) -> None:
        self._url = url
        self._last: KafkaError | None = None

    def on_error(self, error: KafkaError) -> None:
        """Record an error; the client's `error_cb`, called from inside its poll()."""
        if error.name() in _AUTHENTICATION or (
            error.name() == "_ALL_BROKERS_DOWN" and self._last is None
        ):
            self._last = error

    def check(self) -> None:
        """Raise the error since the last call, such as BROKER_UNAVAILABLE."""
        error, self._last = self._last, None
        if error is not None:
            raise translated(error, self._url.redacted())


def make_client(kind: str, settings: Mapping[str, Any], health: ClientHealth) -> Any:
    """Return a client; `kind` is Consumer or Producer. INVALID_INPUT for an unknown property."""
    try:
        settings = {**settings, "error_cb": health.on_error}
        return getattr(confluent_kafka, kind)(settings, logger=_LOG)
    except KafkaException as error:
        raise translated(error.args[0]) from error


def translated(error: KafkaError, url: str = "") -> MlctlError:
    """Return the error as an MlctlError; BROKER_UNAVAILABLE is the only one to try again after."""
    name, text = error.name(), f"{url}: {error.str()}" if url else error.str()
    for names, code, hint in _PERMANENT:
        if name in names:
            return MlctlError(code, text, hint)
    if name.endswith("AUTHORIZATION_FAILED"):
        hint = "Permit the user the topics, the group, and idempotent or transactional writes."
        return MlctlError(ErrorCode.NOT_PERMITTED, text, hint)
    if error.fatal():
        return MlctlError(ErrorCode.UNAVAILABLE, text, "Run the same command again.")
    return MlctlError(ErrorCode.BROKER_UNAVAILABLE, text)


@contextmanager
def translate_errors(url: StreamUrl) -> Iterator[None]:
    """Translate the client's errors."""
    try:
        yield
    except KafkaException as error:
        raise translated(error.args[0], url.redacted()) from error


def partitions_of(client: Any, url: StreamUrl, health: ClientHealth) -> Mapping[int, Any]:
    """Return the partitions of the topic by number; NOT_FOUND, or as translated()."""
    try:
        with translate_errors(url):
            found = client.list_topics(url.topic, timeout=TIMEOUT_S).topics[url.topic]
    except MlctlError as error:
        if error.code is ErrorCode.BROKER_UNAVAILABLE:
            client.poll(0)  # The client may know why the broker did not answer.
            health.check()
        raise
    if found.error is not None:
        raise translated(found.error, url.redacted())
    partitions: Mapping[int, Any] = found.partitions
    return partitions
