"""The event loop that takes many connections in a turn, with real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from mlctl.services.online.http.connection.accept_loop import AcceptingLoop

COUNT = 64


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=COUNT) as made:
        yield made


async def turns(listener: socket.socket) -> int:
    """The turns of the loop after which `COUNT` waiting connections are taken."""
    loop = asyncio.get_running_loop()
    taken: list[asyncio.BaseTransport] = []

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.append(transport)

    clients = [socket.create_connection(listener.getsockname()) for _ in range(COUNT)]
    server = await loop.create_server(Taken, sock=listener)
    count = 0
    async with asyncio.timeout(60):
        while len(taken) < COUNT:
            await asyncio.sleep(0)
            count += 1
    assert server.is_serving()
    assert server.get_loop() is loop
    assert [each.getsockname() for each in server.sockets] == [listener.getsockname()]
    address = listener.getsockname()
    server.close()
    for transport in taken:
        transport.close()
    await server.wait_closed()
    for client in clients:
        client.close()
    with pytest.raises(ConnectionRefusedError):
        await loop.run_in_executor(None, socket.create_connection, address)
    return count


def run(loop_factory: type[asyncio.AbstractEventLoop], listener: socket.socket) -> int:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(turns(listener))


def test_accepting_loop__many_connections__accepts_several_per_tick(
    listener: socket.socket,
) -> None:
    assert run(AcceptingLoop, listener) <= COUNT // 2


def test_uvloop__many_connections__accepts_one_per_tick(listener: socket.socket) -> None:
    """Should that change, ours is of no use any more."""
    assert run(uvloop.Loop, listener) >= COUNT


def test_accepting_loop__closed__leaves_no_file_open(listener: socket.socket) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with asyncio.Runner(loop_factory=AcceptingLoop) as runner:
        runner.run(asyncio.sleep(0))
        before = count()
        runner.run(turns(listener))
        # The executor's thread has no files; the listener itself was closed as well.
        assert count() <= before
