"""An event loop that takes many new connections in a turn, and the last ones, too.

libuv takes one in each turn of its loop. A turn of a server that is asked for more than it can do
is milliseconds long, so that new connections would wait for seconds before anyone looks at them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uvloop

from services.online.http.listening import Listening

# So many handles of one listening socket, each of which takes a connection in a turn.
_HANDLES = 8
_BACKLOG = 100  # asyncio's default


class AcceptingLoop(uvloop.Loop):
    """uvloop's loop, but for the servers of a given socket."""

    async def create_server(
        self,
        protocol_factory: Callable[[], Any],
        *places: Any,
        sock: Any = None,
        ssl: Any = None,
        backlog: int = _BACKLOG,
        ssl_handshake_timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """See asyncio's. The protocols of a `sock` are to be like `Guest`."""
        make = super().create_server
        if sock is None:
            options.update(ssl=ssl, ssl_handshake_timeout=ssl_handshake_timeout)
            return await make(protocol_factory, *places, backlog=backlog, **options)
        sock.setblocking(False)
        if ssl is not None:
            sock.listen(backlog)
            return Listening(sock, protocol_factory, (), ssl, ssl_handshake_timeout)
        handles = [sock, *(sock.dup() for _ in range(_HANDLES - 1))]
        servers = [
            await make(protocol_factory, sock=each, backlog=backlog, **options) for each in handles
        ]
        return Listening(sock, protocol_factory, servers)


def loop_factory(*, use_subprocess: bool = False) -> type[AcceptingLoop]:
    """What makes a loop, as uvicorn's table has it."""
    del use_subprocess  # of no importance to uvloop
    return AcceptingLoop
