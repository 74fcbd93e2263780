from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.online.http.limits import BodyLimit


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body())


async def stubborn(request: Request) -> Response:
    try:
        await request.body()
    except Exception:  # noqa: BLE001 - as BentoML's own routes do
        return JSONResponse({"error": "unexpected"}, status_code=500)
    return PlainTextResponse("read")


def ask(use: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    routes = [Route(f"/{f.__name__}", f, methods=["POST"]) for f in (echo, stubborn)]

    async def main() -> None:
        transport = httpx.ASGITransport(BodyLimit(Starlette(routes=routes), 100, values=20))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await use(client)

    asyncio.run(main())


async def stream(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 10


def test_small_bodies_pass() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.post("/echo", content=b"x" * 100)).text == "x" * 100
        assert (await client.post("/echo", content=stream(10))).text == "x" * 100

    ask(use)


def test_large_bodies_are_refused_as_declared_and_as_streamed() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for path in ("/echo", "/stubborn"):
            assert (await client.post(path, content=b"x" * 101)).status_code == 413
            assert (await client.post(path, content=stream(11))).status_code == 413

    ask(use)


def test_many_values_are_refused_as_they_come() -> None:
    async def values(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"[1,"

    async def use(client: httpx.AsyncClient) -> None:
        for path in ("/echo", "/stubborn"):
            assert (await client.post(path, content=values(10))).status_code == 200
            refused = await client.post(path, content=values(11))
            assert refused.status_code == 413
            assert "more than 20 values" in refused.json()["error"]

    ask(use)


def test_who_waits_to_send_a_body_is_refused_for_good() -> None:
    """It may not send the body any more, for which its next request would be taken."""

    async def use(client: httpx.AsyncClient) -> None:
        headers = {"Expect": "100-continue"}
        refused = await client.post("/echo", content=b"x" * 101, headers=headers)
        assert (refused.status_code, refused.headers["connection"]) == (413, "close")

    ask(use)
