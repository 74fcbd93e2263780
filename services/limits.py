"""A body limit for an application that has none: BentoML's own routes."""

from __future__ import annotations

import contextlib

from services.http import App, Message, Receive, Send, send_error, too_large


class BodyLimit:
    """ASGI middleware: PAYLOAD_TOO_LARGE by the declared length at once, else while it streams."""

    def __init__(self, app: App, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limit:
            await send_error(send, too_large(self._limit))
            return
        await _Guard(self._app, receive, send, self._limit).run(scope)


class _Guard:
    """One request: counts its body, and answers for the application if there is too much."""

    def __init__(self, app: App, receive: Receive, send: Send, limit: int) -> None:
        self._app = app
        self._receive = receive
        self._send = send
        self._limit = limit
        self._seen = 0
        self._started = False

    async def run(self, scope: Message) -> None:
        # The application may turn the interruption into an answer of its own: see `_forward`.
        with contextlib.suppress(_TooLargeError):
            await self._app(scope, self._counted, self._forward)
        if self._exceeded and not self._started:
            await send_error(self._send, too_large(self._limit))

    @property
    def _exceeded(self) -> bool:
        return self._seen > self._limit

    async def _counted(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._exceeded:
            raise _TooLargeError
        return message

    async def _forward(self, message: Message) -> None:
        if self._exceeded and not self._started:
            return
        self._started = True
        await self._send(message)


class _TooLargeError(Exception):
    """Interrupts the application that reads the body."""
