"""NATS JetStream on a real server: the contract, duplicates, redelivery, restarts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.stream.base import Guarantee, Place
from tests.services.stream.contract import Broker, TransportContract
from tests.support.brokers import NatsServer, nats_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


def place(server: NatsServer, name: str, options: str = "create=yes&ack_wait_s=1") -> Place:
    return Place.parse(f"nats://{server.address}?{options}#{name}")


class TestNats(TransportContract):
    """The contract."""

    @pytest.fixture
    def broker(self, server: NatsServer) -> Broker:
        return Broker(lambda name: place(server, name), Guarantee.DEDUPLICATED, fences=False)
