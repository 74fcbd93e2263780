"""Redis Streams on a real server: the contract, ownership, leases, restarts, trimming."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.stream.base import Guarantee, Place
from tests.services.hybrid.servers import RedisServer, redis_server
from tests.services.stream.contract import Broker, TransportContract


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


def place(server: RedisServer, name: str, options: str = "idle_s=0.4") -> Place:
    return Place.parse(f"{server.url}?{options}#{name}")


class TestRedis(TransportContract):
    """The contract."""

    @pytest.fixture
    def broker(self, server: RedisServer) -> Broker:
        return Broker(lambda name: place(server, name), Guarantee.EXACTLY_ONCE)
