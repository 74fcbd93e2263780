"""One of uvicorn's HTTP protocols on a real socket, on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.support.wait import PATIENCE_SECONDS

SERVER_HEADERS = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")]


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening server's port, and its state with the open connections."""

    port: int
    state: ServerState

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def listening(
    app: Any, protocol: type[HttpToolsProtocol], *, keep_alive: int = 5
) -> AsyncIterator[Listening]:
    """Serve `app` over `protocol`, and close what is left at the end."""
    config = Config(
        app,
        http=protocol,
        lifespan="off",
        log_config=None,
        timeout_keep_alive=keep_alive,
        access_log=False,
    )
    config.load()
    state = ServerState()
    state.default_headers = SERVER_HEADERS
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield Listening(server.sockets[0].getsockname()[1], state)
    finally:
        for connection in list(state.connections):
            connection.shutdown()
        server.close()
        await until(lambda: not state.connections)
        await server.wait_closed()


async def until(predicate: Callable[[], object]) -> None:
    """Let the loop run until `predicate()` holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not predicate():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.005)
