"""An ASGI application that only reads the body: what uvicorn costs without any model."""

from __future__ import annotations

from typing import Any

_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"2")],
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer `{}`."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(_START)
    await send({"type": "http.response.body", "body": b"{}"})
