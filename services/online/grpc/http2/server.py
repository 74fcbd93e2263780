"""The HTTP/2 server of gRPC calls and infer requests: its listeners, connections and handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import grpc

from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.admission import Inflight
from mlctl.services.online.grpc.http2.call import GrpcCall, MethodHandler, stopping
from mlctl.services.online.grpc.http2.connection import Connection, OpenWhole, Times
from mlctl.services.online.grpc.http2.head import CallHead
from mlctl.services.online.grpc.http2.http2_call import Http2Call, InferStreams
from mlctl.services.online.grpc.http2.messages import CODINGS
from mlctl.services.online.grpc.http2.observed_calls import GrpcCalls
from mlctl.services.online.grpc.http2.outbox import Parking
from mlctl.services.online.grpc_port import port_taken
from mlctl.services.online.models.extensions import unserved_method
from mlctl.services.online.models.repository import Serving
from mlctl.services.protocol.messages import SERVICE

# As over HTTP. A client that finds it full retries a second later.
_BACKLOG = 2048
# Memory of all open calls beside their messages.
_CALLS_BYTES = 256 << 20
# The same for probes, messages included: they need no token, so they have a budget of their own.
_PROBES_BYTES = 64 << 20
# As over HTTP, probes need no token. A watch of the health is a probe, too.
_PROBES = frozenset(
    {
        f"/{SERVICE}/ServerLive",
        f"/{SERVICE}/ServerReady",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
# Any client may send one, and the server keeps it until it is complete.
_PROBE_BYTES = 1 << 10
_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


class Http2Server:
    """Answer calls with `handlers`, by "/SERVICE/METHOD", within the limits of `serving`.

    V2 infer requests that are not gRPC are answered as over HTTP/1.1.

    If a token is required, callers without one are rejected before a message is read.
    """

    def __init__(
        self,
        serving: Serving,
        handlers: Mapping[str, MethodHandler],
        open_whole: OpenWhole,
    ) -> None:
        self._serving = serving
        self._handlers = handlers
        self._open_whole = open_whole
        self._calls = GrpcCalls(serving.models[0])
        self._room = Inflight(_CALLS_BYTES)
        self._infer = InferStreams(serving, self._room)
        self._probes = Inflight(_PROBES_BYTES)
        self._times = Times()
        self._listeners: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: set[Connection] = set()
        self._parking = Parking()

    def listen(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on all addresses that `address` resolves to, and return the port.

        Port 0 picks a free one. PORT_TAKEN if the port is not free.
        """
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        try:
            found = socket.getaddrinfo(
                address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, _, _, target in found:
                listener = self._bind(family, kind, (target[0], port, *target[2:]))
                self._listeners.append((listener, tls))
                port = listener.getsockname()[1]
        except OSError:
            raise port_taken(address, port) from None
        return port

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        for listener, tls in self._listeners:
            # A connection without a handshake is not counted yet, and would stay for a minute.
            patience = None if tls is None else self._times.preface
            server = await loop.create_server(
                self._connect,
                sock=listener,
                ssl=tls,
                backlog=_BACKLOG,
                ssl_handshake_timeout=patience,
            )
            self._servers.append(server)

    async def drain(self, seconds: float) -> None:
        """Accept no more connections and send clients elsewhere, for up to `seconds`.

        Calls that clients began before they learned of it are answered.
        """
        for server in self._servers:
            server.close()
        for listener, _ in self._listeners:
            listener.close()
        # asyncio accepts a connection two ticks before it calls `connection_made`.
        for _ in range(2):
            await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.drain()
        await self._all_gone(seconds)

    async def stop(self, grace: float) -> None:
        """Accept no more connections or calls; end those still open after `grace` seconds."""
        await self.drain(grace)
        for connection in list(self._connections):
            connection.stop(stopping())
        # TLS waits for the client's end of it, and any client may be slow to read its statuses.
        await self._all_gone(self._times.farewell)
        for connection in list(self._connections):
            connection.transport.abort()
        await self._all_gone(self._times.farewell)

    async def _all_gone(self, seconds: float) -> None:
        """Wait until no connection is open, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections:
                    await asyncio.wait([connection.gone for connection in self._connections])

    def _connect(self) -> Connection:
        settings = self._serving.settings
        return Connection(
            self._open,
            self._connections,
            settings.max_connections,
            self._times,
            self._parking,
            self._open_whole,
            proxied=settings.proxied,
        )

    def _open(
        self, connection: Connection, stream: int, head: CallHead, data: bytes | None
    ) -> GrpcCall | Http2Call | None:
        """Return the call of a new stream, which has begun, or None if it is answered already."""
        handler = self._infer.find(head)
        if handler is not None:
            if data is not None:
                return self._infer.open_whole(handler, connection, stream, head, data)
            return self._infer.open(handler, connection, stream, head)
        if self._infer.reject(connection, stream, head, ended=data is not None):
            return None
        settings = self._serving.settings
        probes = self._probes if is_probe(head.path) else None
        call = GrpcCall(
            connection,
            stream,
            head,
            limit=message_limit(head.path, self._serving.max_body_bytes),
            inflight=probes or self._serving.inflight,
            room=probes or self._room,
            seconds=settings.deadline_ms / 1000,
            ended=data is not None,
            on_reject=self._calls.rejected,
        )
        if head.method != b"POST":
            call.reject_http(405)
        elif not head.is_grpc:
            call.reject_http(415)
        else:
            try:
                self._begin(call, head)
            except MlctlError as error:
                self._calls.rejected(error, head, call.client)
                call.reject(error)
        if data is not None and not call.done:
            call.feed(data, len(data), ended=True)
            call.end()
        return None if call.done else call

    def _begin(self, call: GrpcCall, head: CallHead) -> None:
        if not is_probe(head.path):
            call.client = self._serving.access.client_of(head.authorization)
        handler = self._handlers.get(head.path)
        if handler is None:
            unserved = unserved_method(head.path.removeprefix(f"/{SERVICE}/"))
            known = "this server has no such method" if unserved is None else unserved.message
            call.reject_with(_UNIMPLEMENTED, known)
        elif head.encoding not in CODINGS:
            call.reject_with(_UNIMPLEMENTED, "messages may be packed with gzip or deflate")
        else:
            call.begin(handler)

    def _bind(self, family: int, kind: int, target: tuple[Any, ...]) -> socket.socket:
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._serving.settings.workers > 1:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(target)
            # At once, so that a port in use is an error now.
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener


def is_probe(method: str) -> bool:
    """Return whether `method`, as "/SERVICE/NAME", needs no token."""
    return method in _PROBES


def message_limit(method: str, max_bytes: int) -> int:
    """Return the limit of a message of `method` in bytes; `max_bytes` is that of other methods."""
    return min(_PROBE_BYTES, max_bytes) if is_probe(method) else max_bytes
