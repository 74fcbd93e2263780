"""The settings that limit a server's HTTP connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.config import HTTP_PROTOCOLS, LOOP_FACTORIES

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.http.connection.limits import LimitedProtocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.server.seam import serve_http
from mlctl.services.online.settings import ServerSettings
from tests.support.listening import listening


async def app(_scope: object, _receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


async def test_keep_alive__idle_connection__is_kept_as_long_as_set() -> None:
    protocol = type("Kept", (LimitedProtocol,), {"idle_seconds": 60})

    async with listening(app, protocol, keep_alive=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 10)
        writer.close()


def test_serve_http__settings__set_the_limits_of_connections(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols: dict[str, Any] = HTTP_PROTOCOLS
    monkeypatch.setitem(protocols, "auto", protocols["auto"])
    monkeypatch.setitem(LOOP_FACTORIES, "auto", LOOP_FACTORIES["auto"])
    settings = ServerSettings(keep_alive_s=7, max_connections=9)
    serve_http(settings, InferHandler(ServedModel(bundle, settings)))
    served = protocols["auto"]
    assert (served.idle_seconds, served.max_connections) == (7, 9)
