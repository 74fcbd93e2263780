"""HTTP senders with little CPU cost: prebuilt request bytes over raw connections."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import httptools
import orjson

from mlctl.loadtest.figures import OK
from mlctl.loadtest.loops import Done

CONNECTION_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server's HTTP address and complete request messages, which are sent in turn."""

    host: str
    port: int
    requests: Sequence[bytes]
    tls: ssl.SSLContext | None = None

    async def connect(self) -> HttpSender:
        """Return a new sender with an open connection; OSError if the server accepts none."""
        sender = HttpSender(self)
        await sender.open()
        return sender


class HttpSender:
    """One client with one connection, which is reopened after the server closes it."""

    def __init__(self, target: HttpTarget) -> None:
        self._target = target
        self._requests = itertools.cycle(target.requests)
        self._connection: _Connection | None = None
        self._done: Done | None = None
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect."""
        target = self._target
        _, self._connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self), target.host, target.port, ssl=target.tls
        )

    def send(self, done: Done) -> None:
        """Send the next request; `done` is called once, from the event loop."""
        self._done = done
        if self._connection is None:
            self._opening = asyncio.get_running_loop().create_task(self._send_on_new())
        else:
            self._connection.write(next(self._requests))

    def close(self) -> None:
        """Close the connection and drop an open request."""
        self._done = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def answered(self, outcome: str, timing: bytes, *, keep: bool) -> None:
        """Handle a complete answer; with `keep` the connection stays open."""
        if not keep:
            self._connection = None
        self._finish(outcome, timing)

    def lost(self, connection: _Connection | None) -> None:
        """Handle a closed connection, which a newer one may have replaced."""
        if connection is self._connection:
            self._connection = None
            self._finish(CONNECTION_LOST, b"")

    async def _send_on_new(self) -> None:
        try:
            await self.open()
        except OSError:
            self._finish(CONNECTION_LOST, b"")
            return
        if self._connection is not None and self._done is not None:
            self._connection.write(next(self._requests))

    def _finish(self, outcome: str, timing: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome, timing)


class _Connection(asyncio.Protocol):
    """Reads answers; the parser calls the methods `on_...`."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self._parser = httptools.HttpResponseParser(self)
        self._timing = self._body = b""

    def write(self, request: bytes) -> None:
        self._transport.write(request)

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._sender.lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing":
            self._timing = value

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._body += body

    def on_message_complete(self) -> None:
        status, timing, body = self._parser.get_status_code(), self._timing, self._body
        self._timing = self._body = b""
        if status == 100:
            return
        keep = self._parser.should_keep_alive()
        if not keep:
            self.abort()
        outcome = OK if status == 200 else _failure(status, body)
        self._sender.answered(outcome, timing, keep=keep)


def _failure(status: int, body: bytes) -> str:
    """Return the status and, if the body has one, the server's error code."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return str(status)
    code = document.get("code") if isinstance(document, dict) else None
    return f"{status} {code}" if isinstance(code, str) else str(status)
