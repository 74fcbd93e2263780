"""Without the lean protocol, uvicorn's own one refuses what is too much."""

from __future__ import annotations

import asyncio

import httpx

from services.lean.stock import StockProtocol
from tests.support.listening import listening, until


async def app(_scope: object, _receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


def test_one_connection_too_many_is_refused() -> None:
    protocol = type("Two", (StockProtocol,), {"max_connections": 2})

    async def main() -> None:
        async with listening(app, protocol) as server:
            _, first = await asyncio.open_connection("127.0.0.1", server.port)
            await until(lambda: len(server.state.connections) == 1)
            async with httpx.AsyncClient(base_url=server.url) as client:
                assert (await client.get("/")).status_code == 200
                async with httpx.AsyncClient(base_url=server.url) as third:
                    assert (await third.get("/")).status_code == 503
            first.close()

    asyncio.run(main())
