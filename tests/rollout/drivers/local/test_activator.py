"""What holds requests for a sleeping deployment, on real sockets; a small server wakes up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.domain.spec import Endpoint
from mlctl.rollout.drivers.local.activator import Activator, HoldLimits
from tests.support.listening import until

REQUEST = b"POST /v2/models/tiny/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
HEALTH = b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass
class Sleeper:
    """A deployment that sleeps until its one replica, an echo, is let in."""

    endpoint: Endpoint
    replica: Endpoint | None = None
    woken: int = 0
    received: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def wake(self) -> None:
        self.woken += 1

    async def find(self) -> Endpoint | None:
        return self.replica

    async def start_replica(self) -> asyncio.Server:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            while data := await reader.read(1 << 16):
                self.received.append(data)
                writer.write(b"<" + data + b">")
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.replica = Endpoint(port, port)
        return server


@asynccontextmanager
async def sleeping(limits: HoldLimits | None = None) -> AsyncIterator[Sleeper]:
    sleeper, stop = Sleeper(Endpoint(*free_ports(2))), asyncio.Event()
    activator = Activator(sleeper.wake, sleeper.find, limits or HoldLimits())
    serving = asyncio.create_task(activator.serve(sleeper.endpoint, stop))
    await until(lambda: _listens(sleeper.endpoint.grpc))
    yield sleeper
    stop.set()
    await serving
    for writer in sleeper.writers:
        writer.close()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def ask(port: int, data: bytes, *, until_end: bool = True) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await (reader.read() if until_end else reader.read(1 << 16))
    finally:
        writer.close()
        await writer.wait_closed()


def test_activator__health_check__is_answered_and_starts_no_replica() -> None:
    async def scenario() -> None:
        async with sleeping() as sleeper:
            answer = await ask(sleeper.endpoint.http, HEALTH)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert sleeper.woken == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_activator__request__is_held_until_a_replica_is_ready(port: str) -> None:
    async def scenario() -> None:
        async with sleeping() as sleeper:
            asked = [
                asyncio.create_task(ask(getattr(sleeper.endpoint, port), REQUEST, until_end=False))
                for _ in range(20)
            ]
            await until(lambda: sleeper.woken > 0)
            assert not any(task.done() for task in asked)
            replica = await sleeper.start_replica()
            assert await asyncio.gather(*asked) == [b"<" + REQUEST + b">"] * 20
            replica.close()

    asyncio.run(scenario())


def test_activator__large_body__passes_unchanged() -> None:
    async def scenario() -> None:
        async with sleeping() as sleeper:
            body = bytes(range(256)) * 4096
            reader, writer = await asyncio.open_connection("127.0.0.1", sleeper.endpoint.grpc)
            writer.write(body)
            writer.write_eof()
            replica = await sleeper.start_replica()
            answer = await reader.read()
            assert b"".join(sleeper.received) == body
            assert len(answer) == len(body) + 2 * len(sleeper.received)
            writer.close()
            replica.close()

    asyncio.run(scenario())


def test_activator__no_replica_in_time__answers_unavailable() -> None:
    async def scenario() -> None:
        async with sleeping(HoldLimits(seconds=0.2)) as sleeper:
            answer = await ask(sleeper.endpoint.http, REQUEST)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after" in answer
            assert await ask(sleeper.endpoint.grpc, b"PRI * HTTP/2.0\r\n\r\n") == b""

    asyncio.run(scenario())


def test_activator__limit_of_held_requests__rejects_the_next() -> None:
    async def scenario() -> None:
        async with sleeping(HoldLimits(connections=1)) as sleeper:
            held = asyncio.create_task(ask(sleeper.endpoint.http, REQUEST, until_end=False))
            await until(lambda: sleeper.woken > 0)
            answer = await ask(sleeper.endpoint.http, REQUEST)
            assert answer.startswith(b"HTTP/1.1 503 ")
            replica = await sleeper.start_replica()
            assert (await held).startswith(b"<POST")
            replica.close()

    asyncio.run(scenario())


def test_activator__replica_has_just_died__is_found_again() -> None:
    async def scenario() -> None:
        async with sleeping() as sleeper:
            first = await sleeper.start_replica()
            first.close()
            await first.wait_closed()
            asked = asyncio.create_task(ask(sleeper.endpoint.http, REQUEST, until_end=False))
            await until(lambda: sleeper.woken > 1)
            replica = await sleeper.start_replica()
            assert (await asked).startswith(b"<POST")
            replica.close()

    asyncio.run(scenario())
