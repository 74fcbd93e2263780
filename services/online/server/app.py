"""BentoML's own application, for `/predict` and its pages, behind our limits of time and words.

Its TimeoutMiddleware is left out: it never cancels its timers, so each request stays in memory
for as long as the slowest may take. Its refusals have no code, and may carry a library's text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.scheduler import deadline_exceeded
from services.online.http.app import App, Message, Receive, Send, send_error
from services.online.http.refused import keep_out_of_log, refusals
from services.online.http.responses import MethodError
from services.online.security.public import failed
from services.protocol.wire import shown

_MOST_NAMED = 5
_PREDICT = "/predict"
_REFUSED = 400  # and above
# What BentoML would read beside JSON. A broken form is the server's fault to it, and the parts
# of a large one go to the disk.
_NOT_SERVED = frozenset(
    {
        "multipart/form-data",
        "application/x-www-form-urlencoded",
        "application/vnd.bentoml+pickle",
    }
)


def bento_app(service: Any, is_main: bool) -> App:
    """The application of a `bentoml.Service`, as its own `to_asgi` makes it but for the timeout."""
    from _bentoml_impl.server.app import ServiceAppFactory

    service.inject_config()
    factory = ServiceAppFactory(service, is_main=is_main)
    factory.timeout = None
    keep_out_of_log()
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
    """ASGI middleware: says why `/predict` refuses as all else does, and in words of our own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path != _PREDICT and not path.startswith(f"{_PREDICT}/"):
            await self._app(scope, receive, send)
            return
        if _media_type(scope) in _NOT_SERVED:
            error = MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the content type is not served")
            await send_error(send, error)
            return
        held: list[Message] = []

        async def forward(message: Message) -> None:
            begins = message["type"] == "http.response.start" and message["status"] >= _REFUSED
            if not held and not begins:
                await send(message)
                return
            held.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await _send_refusal(held, heard, send)

        with refusals() as heard:
            await self._app(scope, receive, forward)


def _media_type(scope: Message) -> str:
    """As BentoML reads it, but in any case of letters."""
    lines = (value for name, value in scope["headers"] if name == b"content-type")
    text: str = next(lines, b"").decode("latin-1")
    return text.partition(";")[0].strip().lower()


async def _send_refusal(held: Sequence[Message], heard: Sequence[MlctlError], send: Send) -> None:
    body = b"".join(message.get("body", b"") for message in held[1:])
    error = heard[-1] if heard else _error_of(held[0]["status"], body)
    if error is not None:
        await send_error(send, error)
        return
    for message in held:
        await send(message)


def _error_of(status: int, body: bytes) -> MlctlError | None:
    """What BentoML itself refuses with; None for what stays as it is."""
    match status:
        case HTTPStatus.BAD_REQUEST:
            return _translated(body)
        case HTTPStatus.NOT_FOUND:
            return MlctlError(ErrorCode.NOT_FOUND, "there is no such path")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return MethodError(("POST",))
        case HTTPStatus.INTERNAL_SERVER_ERROR:
            return failed()
    return None


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
