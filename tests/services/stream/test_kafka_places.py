"""Kafka: places, options and secrets; pausing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import ConnectionRequest, StreamUrl
from mlctl.services.stream.transports.kafka import transport
from mlctl.services.stream.transports.kafka_client import properties
from tests.services.stream.contract import numbered, numbers, send, take
from tests.support.kafka import MockKafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    cluster = MockKafka()
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("kafka://me:secret@host:9092#t", ErrorCode.INVALID_INPUT, "SASL_PASSWORD"),
        ("kafka://host:9092", ErrorCode.INVALID_INPUT, "#TOPIC"),
        ("kafka://host:9092?acks=0#t", ErrorCode.INVALID_INPUT, "acks"),
        ("kafka://host:9092?no.such=1#t", ErrorCode.INVALID_INPUT, "no.such"),
        ("kafka://{address}#no-such-topic", ErrorCode.NOT_FOUND, "--create"),
    ],
)
def test_kafka_url__invalid__is_rejected(
    kafka: MockKafka, text: str, code: ErrorCode, word: str
) -> None:
    place = StreamUrl.parse(text.format(address=kafka.address))
    with (
        pytest.raises(MlctlError) as refused,
        transport.open_connection(ConnectionRequest(place, "g")),
    ):
        pass
    assert refused.value.code is code
    assert word in f"{refused.value.message} {refused.value.hint}"
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"


def test_kafka_url__secrets__come_from_the_environment() -> None:
    place = StreamUrl.parse("kafka://host:9092?sasl.username=me#t")
    found = properties(place, {"MLCTL_KAFKA_SASL_PASSWORD": "secret", "MLCTL_KAFKA": "other"})
    assert found["sasl.password"] == "secret"
    assert found["sasl.username"] == "me"
    assert "secret" not in place.redacted()


def test_kafka__poll_without_room__returns_nothing_and_loses_nothing(kafka: MockKafka) -> None:
    source = StreamUrl.parse(f"kafka://{kafka.address}#in")
    kafka.create("in", 1)
    send(source, numbered(0, 20))
    with transport.open_connection(ConnectionRequest(source, "g")) as link:
        found = [*link.poll(5, 5.0)]
        for _ in range(5):
            assert [*link.poll(0, 0.0)] == []
        found += take(link, 20 - len(found))
    assert numbers(found) == [*range(20)]
