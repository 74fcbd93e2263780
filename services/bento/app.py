"""BentoML's own application, for `/predict` and its pages, behind our limits of time and words.

Its TimeoutMiddleware is left out: it never cancels its timers, so each request stays in memory
for as long as the slowest may take. Its answers to wrong arguments carry pydantic's text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from services.batching.batcher import deadline_exceeded
from services.http.app import App, Message, Receive, Send, send_error
from services.v2.wire import shown

_MOST_NAMED = 5
_PREDICT = "/predict"


def bento_app(service: Any, is_main: bool) -> App:
    """The application of a `bentoml.Service`, as its own `to_asgi` makes it but for the timeout."""
    from _bentoml_impl.server.app import ServiceAppFactory

    service.inject_config()
    factory = ServiceAppFactory(service, is_main=is_main)
    factory.timeout = None
    app: App = PlainRefusals(factory())
    return app


class TimeLimit:
    """ASGI middleware: DEADLINE_EXCEEDED unless the answer has begun after `seconds`."""

    def __init__(self, app: App, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = asyncio.timeout(self._seconds)

        async def forward(message: Message) -> None:
            if limit.when() is not None:
                limit.reschedule(None)
            await send(message)

        try:
            async with limit:
                await self._app(scope, receive, forward)
        except TimeoutError:
            if not limit.expired():
                raise
            await send_error(send, deadline_exceeded())


class PlainRefusals:
    """ASGI middleware: says which arguments of `/predict` are wrong in words of our own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path != _PREDICT and not path.startswith(f"{_PREDICT}/"):
            await self._app(scope, receive, send)
            return
        held: list[Message] = []

        async def forward(message: Message) -> None:
            begins = message["type"] == "http.response.start" and message["status"] == 400
            if not held and not begins:
                await send(message)
                return
            held.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await _send_refusal(held, send)

        await self._app(scope, receive, forward)


async def _send_refusal(held: Sequence[Message], send: Send) -> None:
    body = b"".join(message.get("body", b"") for message in held[1:])
    if (error := _translated(body)) is not None:
        await send_error(send, error)
        return
    for message in held:
        await send(message)


def _translated(body: bytes) -> MlctlError | None:
    """What pydantic found in the arguments; None if `body` is not about that."""
    try:
        detail = json.loads(body)["detail"]
        found = {str(each["loc"][0]): each["type"] for each in detail if each["loc"]}
    except (ValueError, TypeError, LookupError):
        return None
    said = [
        f"{shown(name)} is missing" if kind == "missing" else f"{shown(name)} is not as described"
        for name, kind in list(found.items())[:_MOST_NAMED]
    ]
    what = ", ".join(said) or "they are not one JSON object"
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"the arguments are wrong: {what}",
        "GET /docs.json describes the arguments.",
    )
