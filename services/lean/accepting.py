"""An event loop that takes many new connections in a turn.

libuv takes one in each turn of its loop. A turn of a server that is asked for more than it can do
is milliseconds long, so that new connections would wait for seconds before anyone looks at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

# So many handles of one listening socket, each of which takes a connection in a turn.
_HANDLES = 8


class Servers(asyncio.AbstractServer):
    """Several servers that listen on the same sockets, as one."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._servers = servers

    @property
    def sockets(self) -> Any:
        """What they listen on, each once."""
        return self._servers[0].sockets

    def get_loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self._servers[0].get_loop()
        return loop

    def is_serving(self) -> bool:
        serving: bool = self._servers[0].is_serving()
        return serving

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def start_serving(self) -> None:
        for server in self._servers:
            await server.start_serving()

    async def serve_forever(self) -> None:
        await self._servers[0].serve_forever()

    async def wait_closed(self) -> None:
        for server in self._servers:
            await server.wait_closed()


class AcceptingLoop(uvloop.Loop):
    """uvloop's loop, but for that."""

    async def create_server(
        self, protocol_factory: Callable[[], Any], *places: Any, sock: Any = None, **options: Any
    ) -> Any:
        make = super().create_server
        server = await make(protocol_factory, *places, sock=sock, **options)
        if sock is None:
            return server
        others = [
            await make(protocol_factory, sock=sock.dup(), **options) for _ in range(_HANDLES - 1)
        ]
        return Servers([server, *others])


def loop_factory(*, use_subprocess: bool = False) -> type[AcceptingLoop]:
    """What makes a loop, as uvicorn's table has it."""
    del use_subprocess  # of no importance to uvloop
    return AcceptingLoop
