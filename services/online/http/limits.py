"""Limits on bodies for an application that has none: BentoML's own routes."""

from __future__ import annotations

import contextlib
import sys

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.budget import Hold, Inflight
from services.online.http.app import App, Message, Receive, Send, send_error, too_large

# BentoML reads JSON on the event loop, at half a microsecond and a hundred bytes for each value.
MAX_VALUES = 1 << 20


class BodyLimit:
    """ASGI middleware: rejects by the declared length at once, else while the body streams.

    PAYLOAD_TOO_LARGE above `limit` bytes, or `values` if they are JSON; BusyError where
    `inflight`, if given, has no room for the bytes that have arrived.
    """

    def __init__(
        self,
        app: App,
        limit: int,
        inflight: Inflight | None = None,
        values: int = MAX_VALUES,
    ) -> None:
        self._app = app
        self._limit = limit
        self._inflight = inflight or Inflight(sys.maxsize)
        self._values = values

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        with Hold(self._inflight) as hold:
            guard = _Guard(self._app, receive, send, hold, self._limit, self._values)
            if length.isdigit() and int(length) > self._limit:
                await send_error(send, too_large(self._limit), headers)
                return
            await guard.run(scope)


class _Guard:
    """Counts one request's body, and answers in place of the application if it is too large."""

    def __init__(
        self, app: App, receive: Receive, send: Send, hold: Hold, limit: int, values: int
    ) -> None:
        self._app = app
        self._receive = receive
        self._send = send
        self._hold = hold
        self._limit = limit
        self._values = values
        self._seen = self._marks = 0
        self._started = False
        self._refusal: MlctlError | None = None

    async def run(self, scope: Message) -> None:
        # The application may answer the interruption itself: `_forward` drops that answer.
        with contextlib.suppress(CutOffError):
            await self._app(scope, self._counted, self._forward)
        if self._refusal is not None and not self._started:
            await send_error(self._send, self._refusal)

    async def _counted(self) -> Message:
        message = await self._receive()
        body = message.get("body", b"")
        self._seen += len(body)
        # Each value but the outermost follows one of these.
        self._marks += body.count(b",") + body.count(b"[") + body.count(b"{")
        try:
            if self._seen > self._limit:
                raise too_large(self._limit)
            self._hold.grow(self._seen)
            if self._marks > self._values:
                raise _too_many(self._values)
        except MlctlError as error:
            self._refusal = error
            raise CutOffError from error
        return message

    async def _forward(self, message: Message) -> None:
        if self._refusal is not None and not self._started:
            return
        self._started = True
        await self._send(message)


def _too_many(limit: int) -> MlctlError:
    return MlctlError(
        ErrorCode.PAYLOAD_TOO_LARGE,
        f"the body has more than {limit} values",
        "Send fewer rows in each request, or binary data to /v2/models/NAME/infer.",
    )


class CutOffError(Exception):
    """Interrupts the application that reads the body."""
