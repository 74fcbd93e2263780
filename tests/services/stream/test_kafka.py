"""Kafka: the contract and the faults, over TCP with librdkafka's mock brokers.

What they cannot show runs with MLCTL_KAFKA=HOST:PORT against a real cluster.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from services.stream.base import Guarantee, Place
from tests.services.stream.contract import Broker, TransportContract
from tests.support.kafka import MockKafka

_REAL = os.environ.get("MLCTL_KAFKA")
OPTIONS = "session.timeout.ms=6000&heartbeat.interval.ms=100&fetch.wait.max.ms=100"


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    cluster = MockKafka()
    yield cluster
    cluster.close()


def places_of(kafka: MockKafka, partitions: int = 2, options: str = "") -> Callable[[str], Place]:
    def place(name: str) -> Place:
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        kafka.create(topic, partitions)
        return Place.parse(f"kafka://{kafka.address}?{OPTIONS}{options}#{topic}")

    return place


class TestKafka(TransportContract):
    """At least once."""

    @pytest.fixture
    def broker(self, kafka: MockKafka) -> Broker:
        return Broker(places_of(kafka), Guarantee.AT_LEAST_ONCE, takes_over=False, fences=False)
