"""Streamed answers as server-sent events: one `data:` line of JSON for each part.

The status is 200 only when there is a first part, or when the first takes so long that a proxy
might give up; later failures are reported by an event. A slow reader holds the model's work back,
and a disconnect ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from services.online.http.inference import InferHandler, StreamedAnswer

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
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._lock = asyncio.Lock()

    async def write(self, event: bytes, *, more: bool = True) -> None:
        """Send the bytes of an event or a comment, when the connection takes them."""
        async with self._lock:
            if not self.started:
                start = {"type": "http.response.start", "status": 200, "headers": self.headers}
                await self._send(start)
                self.started = True
            await self._send({"type": "http.response.body", "body": event, "more_body": more})
            self._last = self._loop.time()

    async def end(self, name: bytes, document: bytes) -> None:
        """Send the last event, which has the name `name`."""
        await self.write(b"event: %b\ndata: %b\n\n" % (name, document), more=False)

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Send a comment whenever nothing was sent for `HEARTBEAT_SECONDS`, in the context."""
        task = self._loop.create_task(self._beat())
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self) -> None:
        while True:
            rest = self._last + HEARTBEAT_SECONDS - self._loop.time()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await self.write(_HEARTBEAT)


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
        with events.heartbeats():
            async for part in parts:
                await events.write(b"data: %b\n\n" % inference.encode_part(streamed, part))
        if watch.done():
            raise GoneError
        await events.end(b"end", inference.encode_end(streamed))
    finally:
        watch.cancel()
        parts.close()
