"""A request to the application, and its response: a whole one, or server-sent events.

Limits come before parsing: the declared length, then the arrived one. The status of a stream is 200
only when there is a first event, or when the first takes so long that a proxy might give up; later
failures are reported by an event. A slow client slows the model down (back-pressure).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, TypeVar

from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.batching.scheduler import deadline_exceeded
from mlctl.services.online.batching.streaming import PieceStream
from mlctl.services.online.http.fields import fields_of
from mlctl.services.online.http.responses import MethodError, RequestIds, Response, error_response
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.observability.calls import RequestRecord
from mlctl.services.online.security.public import failed, is_public

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Piece = TypeVar("Piece")
_Result = TypeVar("_Result")
# The name of a request's client in its ASGI scope.
CLIENT = "mlctl.client"
# Proxies close a connection on which nothing came for half a minute or more.
HEARTBEAT_SECONDS = 15.0
# Peers on this machine, through which a proxy may speak for others.
_LOCAL = frozenset({"", "127.0.0.1", "::1"})
# Bits of the addresses of one host or home: an IPv6 network of this size is one client.
_IPV6_PREFIX = 64
_HEARTBEAT = b": nothing yet\n\n"
logger = logging.getLogger("mlctl.http")
_EVENT_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # nginx and others buffer a page of what they forward.
    (b"x-accel-buffering", b"no"),
)


class GoneError(Exception):
    """The client disconnected before it had its answer."""


Reject = Callable[[BaseException, bytes, str, RequestRecord | None], Response]


class CallHandler:
    """Counts and observes the calls of one model, as those of one protocol."""

    def __init__(self, served: ServedModel, protocol: str) -> None:
        self._served = served
        self._protocol = protocol
        self._ids = RequestIds()

    def request_id(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return the caller's X-Request-Id if it can be echoed, else a new id."""
        return self._ids.of(headers.get(b"x-request-id"))

    def observe(self, headers: Mapping[bytes, bytes], request_id: bytes) -> RequestRecord | None:
        """Return the observability record of this request, or None if it has none."""
        observer = self._served.observer
        if observer is None:
            return None
        traceparent, tracestate = headers.get(b"traceparent"), headers.get(b"tracestate")
        return observer.begin(self._protocol, request_id, traceparent, tracestate)

    def reject(
        self,
        error: BaseException,
        request_id: bytes,
        client: str = "",
        record: RequestRecord | None = None,
        status: int | None = None,
    ) -> Response:
        """Make the response to a failed request, and count it as one of `client`.

        An unexpected error shows no details.
        `status` is reported if it is not that of the error.
        """
        if not is_public(error):
            logger.error("request %s failed", request_id.decode(), exc_info=error)
            error = failed()
        self._served.count(self._protocol, error, client)
        self.report(record, error, status)
        return error_response(error, [(b"x-request-id", request_id)])

    def charge(self, client: str) -> None:
        """Count a request of `client` that has arrived; RATE_LIMIT_EXCEEDED beyond its limit."""
        self._served.access.charge(client)

    def disconnected(self, client: str = "", record: RequestRecord | None = None) -> None:
        """Count a request whose client disconnected."""
        error = asyncio.CancelledError()
        self._served.count(self._protocol, error, client)
        self.report(record, error)

    def report(
        self,
        record: RequestRecord | None,
        error: BaseException | None = None,
        status: int | None = None,
    ) -> None:
        """Report a failed or streamed request to the observer.

        `status` is the HTTP status if it is not that of the error.
        """
        if record is not None and self._served.observer is not None:
            self._served.observer.ended(record, error, status)


class HttpCall:
    """One request, with the means to answer it; `record` is its observability record.

    `client` is the name of its token. It arrived at the loop's time `arrived`. The head of a stream
    is sent with its first event, and has `event_headers` besides. `error_event` is the form of an
    error in a stream.
    """

    error_event = b"event: error\ndata: %b\n\n"

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope.get("method", "")
        self.headers = fields_of(scope["headers"])
        self.client: str = scope.get(CLIENT, "")
        self._peer: tuple[str, int] | None = scope.get("client")
        self.request_id = b""
        self.record: RequestRecord | None = None
        self.arrived = asyncio.get_running_loop().time()
        self.event_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.streaming = False
        self._receive = receive
        self._send = send
        self._lock = asyncio.Lock()
        self._last_sent = self.arrived

    @property
    def address(self) -> str:
        """The address of the client, "" if it has none; behind the proxy of a deployment its own.

        The proxy, on this machine, appends it to X-Forwarded-For.
        """
        peer = self._peer[0] if self._peer else ""
        forwarded = self.headers.get(b"x-forwarded-for", b"").rpartition(b",")[2].strip()
        return forwarded.decode("latin-1") if forwarded and peer in _LOCAL else peer

    @property
    def origin(self) -> str:
        """Who shares the server fairly with others: a token's name, else a client's address.

        A network of IPv6 addresses, which one host has, is one address; an IPv4 address that is
        written as one of IPv6 is itself.
        """
        if self.client:
            return self.client
        try:
            found = ip_address(self.address)
        except ValueError:
            return self.address  # what a proxy wrote in another form, or no address at all
        if not isinstance(found, IPv6Address):
            return self.address
        return str(found.ipv4_mapped or ip_network((found, _IPV6_PREFIX), strict=False))

    def require(self, *methods: str) -> None:
        """Raise METHOD_NOT_ALLOWED unless the method is one of `methods`."""
        if self.method not in methods:
            raise MethodError(methods)

    async def answer(self, response: Awaitable[Response]) -> None:
        """Send the response that `response` returns, or that to the error that it raises."""
        try:
            await self.respond(await response)
        except MlctlError as error:
            await self.reject(error_response(error))
        except GoneError:
            return  # the client disconnected

    async def serve(
        self,
        handler: CallHandler,
        work: Callable[[], Awaitable[None]],
        reject: Reject | None = None,
    ) -> None:
        """Give the call its id and record, and let `work` answer it; an error is counted and sent.

        `reject` makes the response to an error in place of `handler`.
        """
        self.request_id = handler.request_id(self.headers)
        self.record = record = handler.observe(self.headers, self.request_id)
        if record is not None:
            record.client = self.client
        try:
            handler.charge(self.client)
            await work()
        except GoneError:
            handler.disconnected(self.client, record)
        except asyncio.CancelledError:
            handler.disconnected(self.client, record)
            raise
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            response = (reject or handler.reject)(error, self.request_id, self.client, record)
            await self.reject(response)

    async def read(self, check_size: Callable[[int], None], hold: Hold, seconds: float) -> bytes:
        """Read the whole body; DEADLINE_EXCEEDED `seconds` after the request arrived.

        Raises what `check_size` and `hold` raise, as soon as it is too much.
        """
        body = bytearray()
        try:
            async with asyncio.timeout_at(self.arrived + seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    body += message.get("body", b"")
                    check_size(len(body))
                    hold.grow(len(body))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise deadline_exceeded() from None
        if self.record is not None:
            self.record.bytes_in = len(body)
        return bytes(body)

    async def unless_gone(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return what `work` returns; if the client disconnects, cancel it and raise GoneError.

        Call this after the body was read.
        """
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._receive())
        watch.add_done_callback(lambda each: each.cancelled() or task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if watch.done() and not watch.cancelled():
                raise GoneError from None
            raise
        finally:
            watch.cancel()
            task.cancel()

    async def respond(self, response: Response) -> None:
        """Send a whole response."""
        await self._start(response.status, response.headers)
        await self._send({"type": "http.response.body", "body": response.body})

    async def reject(self, response: Response) -> None:
        """Send the response to an error: whole, or as the last event of a stream."""
        if self.streaming:
            await self.write(self.error_event % response.body, more=False)
            return
        if b"expect" in self.headers:
            # The client may never send the body, and the server would take its next request for it.
            response.headers.append((b"connection", b"close"))
        await self.respond(response)

    async def write(self, event: bytes, *, more: bool = True) -> None:
        """Send the bytes of an event or a comment, when the connection takes them."""
        async with self._lock:
            if not self.streaming:
                named = (*_EVENT_HEADERS, (b"x-request-id", self.request_id), *self.event_headers)
                await self._start(200, list(named))
                self.streaming = True
            await self._send({"type": "http.response.body", "body": event, "more_body": more})
            self._last_sent = asyncio.get_running_loop().time()

    async def pieces(self, stream: PieceStream[Piece]) -> AsyncGenerator[Piece]:
        """Yield the pieces of an answer, and close it; GoneError if the client disconnects first.

        Use it with `aclosing`.
        """
        watch = asyncio.ensure_future(self._receive())
        watch.add_done_callback(lambda _: stream.close())
        try:
            async for piece in stream:
                yield piece
            if watch.done():
                raise GoneError
        finally:
            watch.cancel()
            stream.close()

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Send a comment whenever nothing was sent for `HEARTBEAT_SECONDS`, in the context."""
        task = asyncio.get_running_loop().create_task(self._beat())
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            rest = self._last_sent + HEARTBEAT_SECONDS - loop.time()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await self.write(_HEARTBEAT)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
