"""A listener that drains its accept backlog before it closes.

The kernel accepts connections, and TLS negotiates, before the server knows of them. Closing the
listener at once would reset connections whose clients may have sent a request already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

# Connections with TLS that are accepted per tick.
_MAX_CLIENTS = 16
# The pause before the next try at the limit of open files.
_BREATH_SECONDS = 1.0
_HANDSHAKE_SECONDS = 10.0
# The time that unfinished handshakes get at the end.
_GRACE_SECONDS = 1.0
_POLL_SECONDS = 0.05
logger = logging.getLogger("mlctl.listening")


class Guest(Protocol):
    """A connection's protocol, as uvicorn has it; it is one of its `connections` while it lasts."""

    @property
    def connections(self) -> set[Any]: ...

    def shutdown(self) -> None: ...


class Listening:
    """Makes the connections to `listener`, which listens, to protocols of `factory`: `Guest`s.

    `servers` accept them. With `tls` there are none: a server does not report open handshakes, so
    connections are accepted here.
    """

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[], Any],
        servers: Sequence[Any] = (),
        tls: ssl.SSLContext | None = None,
        handshake_seconds: float | None = None,
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._servers = servers
        self._tls = tls
        self._patience = None if tls is None else handshake_seconds or _HANDSHAKE_SECONDS
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[None]] = set()
        self._late: list[Guest] = []
        self._closed = False
        if tls is not None:
            self._watch()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets."""
        return () if self._closed else (self._listener,)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._closed

    def close(self) -> None:
        """Stop accepting; connections from the backlog end after one request."""
        if self._closed:
            return
        self._closed = True
        if self._tls is not None:
            self._loop.remove_reader(self._listener)
        # The process that started this one has the listener open as well. To close it here
        # alone would leave it accepting connections that are never answered.
        with contextlib.suppress(OSError):
            for client in self._waiting():
                self._let_in(client)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RD)
        for server in self._servers:
            server.close()
        if self._tls is not None:
            self._listener.close()

    async def wait_closed(self) -> None:
        """Wait until the connections from the backlog are closed."""
        try:
            if self._coming:
                await asyncio.wait(self._coming, timeout=_GRACE_SECONDS)
        finally:  # the caller's patience may be less
            for task in self._coming:
                task.cancel()
        while any(guest in guest.connections for guest in self._late):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_SECONDS)

    def _watch(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._on_readable)

    def _on_readable(self) -> None:
        try:
            for client in islice(self._waiting(), _MAX_CLIENTS):
                self._let_in(client)
        except OSError:
            logger.exception("no connection can be accepted")
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_BREATH_SECONDS, self._watch)

    def _waiting(self) -> Iterator[socket.socket]:
        """Yield the connections that the kernel has accepted."""
        while True:
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the client closed it
            client.setblocking(False)
            yield client

    def _let_in(self, client: socket.socket) -> None:
        task = self._loop.create_task(self._meet(client))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _meet(self, client: socket.socket) -> None:
        guest = self._factory()
        try:
            await self._loop.connect_accepted_socket(
                lambda: guest, client, ssl=self._tls, ssl_handshake_timeout=self._patience
            )
        except OSError:
            return  # it closed, or the handshake failed
        if self._closed:
            guest.shutdown()
            self._late.append(guest)
