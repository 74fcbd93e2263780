"""Streamed answers as server-sent events: one `data:` line of JSON for each part.

The status is 200 only when there is a first part, or when the first takes so long that a proxy
might give up; later failures are reported by an event. A slow reader holds the model's work back,
and a disconnect ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from services.online.http.inference import InferHandler, StreamedAnswer
from services.runtime.streaming import Answer, AnswerStream

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# Proxies close a connection on which nothing came for half a minute or more.
HEARTBEAT_SECONDS = 15.0
_HEARTBEAT = b": nothing yet\n\n"


class GoneError(Exception):
    """The client disconnected before it had its answer."""


class EventWriter:
    """Writes events to one response, whose head with `headers` is sent with the first event."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self.request_id = request_id
        self._send = send
        self.headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            # nginx and others buffer a page of what they forward.
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", request_id),
        ]
        self.started = False

    async def write(self, event: bytes, *, more: bool = True) -> None:
        """Send the bytes of an event or a comment, when the connection takes them."""
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": self.headers}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": event, "more_body": more})

    async def end(self, name: bytes, document: bytes) -> None:
        """Send the last event, which has the name `name`."""
        await self.write(b"event: %b\ndata: %b\n\n" % (name, document), more=False)


async def send_events(
    streamed: StreamedAnswer, inference: InferHandler, events: EventWriter, receive: Receive
) -> None:
    """Send each part as it comes, and the end.

    Raises GoneError if the client disconnects first, and the error of an answer that fails.
    """
    parts = streamed.parts
    watch = asyncio.ensure_future(receive())
    watch.add_done_callback(lambda _: parts.close())
    try:
        async for part in _or_heartbeat(parts):
            if part is None:
                await events.write(_HEARTBEAT)
            else:
                await events.write(b"data: %b\n\n" % inference.encode_part(streamed, part))
        if watch.done():
            raise GoneError
        await events.end(b"end", inference.encode_end(streamed))
    finally:
        watch.cancel()
        parts.close()


async def _or_heartbeat(parts: AnswerStream) -> AsyncIterator[Answer | None]:
    """Yield the parts, and None each time that none has come for `HEARTBEAT_SECONDS`."""
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                part = await anext(parts)
        except TimeoutError:
            yield None
        except StopAsyncIteration:
            return
        else:
            yield part
