"""An event loop that accepts many new connections per tick, and the last ones before it closes.

libuv accepts one in each tick. A tick of an overloaded server takes milliseconds, so a thousand new
connections would wait for seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uvloop

from mlctl.services.online.http.listening import Listening

# Handles of one listening socket; each accepts one connection per tick.
_HANDLES = 8
_BACKLOG = 100  # asyncio's default


class AcceptingLoop(uvloop.Loop):
    """uvloop's loop with other servers for a given socket."""

    async def create_server(
        self,
        protocol_factory: Callable[[], Any],
        *addresses: Any,
        sock: Any = None,
        ssl: Any = None,
        backlog: int = _BACKLOG,
        ssl_handshake_timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """See asyncio. The protocols of a `sock` must be like `Guest`."""
        make = super().create_server
        if sock is None:
            options.update(ssl=ssl, ssl_handshake_timeout=ssl_handshake_timeout)
            return await make(protocol_factory, *addresses, backlog=backlog, **options)
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
    """Return the loop's class, in the form of uvicorn's table."""
    del use_subprocess  # uvloop has no use for it
    return AcceptingLoop
