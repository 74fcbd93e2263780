"""One connection: HTTP/2's events to gRPC calls and infer requests, with limits on a client.

The protocol's own rules (frames, streams, windows, header compression) are the core's.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any, Protocol, cast

from mlctl.core.errors import MlctlError
from mlctl.services.online.grpc.http2.call import GrpcCall
from mlctl.services.online.grpc.http2.core import Core
from mlctl.services.online.grpc.http2.events import (
    ControlFrame,
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PongReceived,
    StreamReset,
    WholeCallReceived,
    WindowOpened,
)
from mlctl.services.online.grpc.http2.frames import MAX_STREAM, BrokenError, Reason
from mlctl.services.online.grpc.http2.head import CallHead
from mlctl.services.online.grpc.http2.http2_call import Http2Call, OpenInferStream
from mlctl.services.online.grpc.http2.outbox import Parking, SendQueue
from mlctl.services.online.turns import turns_of

_DRAIN_PING = b"mlctlend"
_ALIVE_PING = b"mlctlpng"
# A connection with so many unsent bytes of answers may begin no more calls.
_PARKED_BYTES = 64 << 20
# The same limit for all connections together.
_ALL_PARKED_BYTES = 256 << 20
_REJECTED_COST = 0.125
# Of the bucket of control frames.
CAPACITY = 1000.0
PER_SECOND = 200.0
PER_ANSWER = 2.0
# Of the bucket of cancelled calls: an answer pays for one, so that few do not pay for very many.
PER_CANCELLED = 0.125
logger = logging.getLogger("mlctl.grpc")


class Bucket:
    """Limits frames other than calls: pings, settings, resets, empty frames.

    A leaky bucket: each frame adds to it, it drains over time, and each response drains it further.
    A well-behaved client never fills it. `now` is in monotonic seconds, `level` above zero while it
    drains.
    """

    __slots__ = ("_at", "level")

    def __init__(self, now: float) -> None:
        self._at = now
        self.level = 0.0

    def add(self, now: float, cost: float = 1.0) -> bool:
        """Add `cost`; return whether the level is within the capacity."""
        self.level = max(0.0, self.level - (now - self._at) * PER_SECOND) + cost
        self._at = now
        return self.level <= CAPACITY

    def answered(self, share: float = PER_ANSWER) -> None:
        """Drain the share of one sent response."""
        self.level = max(0.0, self.level - share)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a connection in seconds.

    `tick`: between two checks. `preface`: until it must speak HTTP/2. `silence`: without a byte
    until the client is pinged, and then until the connection is dropped. `idle`: without a call
    until the client is asked to connect again. `farewell`: until a client must have received the
    announcement of a stop. A client must read `stall_bytes` in each `stall`.
    """

    tick: float = 5.0
    preface: float = 10.0
    silence: float = 60.0
    idle: float = 1800.0
    farewell: float = 1.0
    stall: float = 10.0
    stall_bytes: int = 4 << 10


# Makes and begins the call of a stream: its head, and all its data, or None if more follows.
# Returns None if the call is answered already.
OpenCall = Callable[["Connection", int, CallHead, bytes | None], GrpcCall | Http2Call | None]


class ConnectionCall(Protocol):
    """A call as its connection knows it."""

    stream: int

    def leave(self) -> None:
        """Withdraw the call: its client disconnected or cancelled it."""

    def stop(self, reason: MlctlError) -> None:
        """End the call with the status of `reason`."""


# Begins or rejects a call that arrived whole: its plain head, and its message with the prefix.
# Returns False for a call of another kind.
OpenWhole = Callable[["Connection", int, CallHead, bytes], bool]


class Connection(asyncio.Protocol):
    """One connection.

    `calls` are in progress, by stream. `connections` are the open ones, at most `max_connections`;
    `parking` counts their unsent bytes. A `proxied` one carries the calls of many clients, of which
    none must end it for all.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        open_call: OpenCall,
        connections: set[Connection],
        max_connections: int,
        times: Times,
        parking: Parking,
        open_whole: OpenWhole,
        *,
        proxied: bool = False,
    ) -> None:
        self._open_call = open_call
        self._proxied = proxied
        self._open_whole = open_whole
        self.connections = connections
        self._max_connections = max_connections
        self._times = times
        self._core = Core()
        self.gone = asyncio.get_running_loop().create_future()
        self._parking = parking
        self.outbox = SendQueue(self._core, self._wake, parking)
        self.peer = ""
        self.calls: dict[int, ConnectionCall] = {}
        self._waking = False
        # Events of the last read that wait for the connection's turn; reading is paused meanwhile.
        self._events: Iterator[Event] = iter(())
        self._waits = False
        self._closed = False
        self._draining = False
        self._announced_last = False
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            WholeCallReceived: self._on_whole_call,
            HeadersReceived: self._on_headers,
            DataReceived: self._on_data_received,
            StreamReset: self._on_stream_reset,
            WindowOpened: self._on_window_opened,
            ControlFrame: self._on_control_frame,
            PongReceived: self._on_pong,
            GoAwayReceived: self._on_goaway_received,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self.connections.add(self)
        name = transport.get_extra_info("peername")  # None after the client's reset
        if (
            name is None
            or len(self.connections) > self._max_connections
            or not _speaks_http2(transport)
        ):
            self._abort()
            return
        self.peer = _peer(name)
        self._turns = turns_of(self._loop)
        now = monotonic()
        self._bucket, self._cancelled = Bucket(now), Bucket(now)
        self._made = self._heard = self._called = self._charged = now
        self._pinged = False
        self._stalled: tuple[float, int] | None = None
        self._timer = self._loop.call_later(self._times.tick, self._tick)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._closed = True
        self.connections.discard(self)
        if hasattr(self, "_timer"):
            self._timer.cancel()
        self._leave_calls()
        self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._pinged = False
        events = self._core.receive(data)
        if self._waits:
            self._events = chain(self._events, events)
        else:
            self._events = events
            self._proceed()

    def _proceed(self) -> None:
        """Handle events for this connection's share of a tick; the rest waits for its turn."""
        self._waking = True  # everything is written at the end
        self._heard, clock = monotonic(), self._turns.clock
        begun = self._heard if clock is monotonic else clock()
        try:
            for event in self._events:
                self._handlers[type(event)](event)
                if self.transport.is_closing():
                    return
                spent = clock() - begun
                if spent > self._turns.share:
                    self._wait(spent)
                    break
            self.flush()
        except BrokenError as error:
            logger.info("a connection broke HTTP/2's rules: %s", error)
            self._break(error.reason)
        except Exception:
            logger.exception("a connection failed")
            self._break(Reason.INTERNAL_ERROR)

    def _wait(self, spent: float) -> None:
        if not self._waits:
            self._waits = True
            self.transport.pause_reading()
        rested, self._charged = self._heard - self._charged, self._heard
        self._turns.wait(self.transport, self._take_turn, self._turns.debt(spent, rested))

    def _take_turn(self) -> None:
        if self._closed:
            return
        self._waits = False
        self._proceed()
        if not self._waits and not self._closed and not self.outbox.paused:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Stop reading from a client that reads too slowly."""
        self.outbox.paused = True
        self._stalled = monotonic(), self.transport.get_write_buffer_size()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.outbox.paused = False
        self._stalled = None
        if not self._closed:
            if not self._waits:
                self.transport.resume_reading()
            self.outbox.resume()

    def consumed(self, stream: int, size: int) -> None:
        """Let the client send so many bytes more on the stream."""
        if not self._closed:
            self._core.give(stream, size)
            self._wake()

    def reject(self, stream: int, block: bytes) -> None:
        """Answer a call that arrived whole with the trailers in `block`, and forget it."""
        self._core.headers(stream, block, end=True)
        self._called = self._heard
        self.over(stream)
        self._wake()

    def over(self, stream: int) -> None:
        """Forget the call of `stream`, which was answered."""
        if self._bucket.level:
            self._bucket.answered()
        if self._cancelled.level:
            self._cancelled.answered(PER_CANCELLED)
        if self.calls.pop(stream, None) is not None and not self.calls:
            self._note_called()

    def drain(self) -> None:
        """Ask the client to send its next calls elsewhere; close after the open ones are answered.

        All streams are accepted at first. The last one is named only after the client has received
        the announcement, so that no call is lost in between.
        """
        if self._closed or self._draining:
            return
        self._draining = True
        self._core.goaway(MAX_STREAM)
        self._core.ping(_DRAIN_PING)
        self._wake()
        self._loop.call_later(self._times.farewell, self._announce_last)

    def shutdown(self) -> None:
        """`drain` after a moment, so that a new client can send its first call."""
        self._loop.call_later(self._times.farewell / 2, self.drain)

    def stop(self, reason: MlctlError) -> None:
        """End all calls with the status of `reason`, and the connection."""
        for call in list(self.calls.values()):
            call.stop(reason)
        self._end()

    def _on_whole_call(self, event: WholeCallReceived) -> None:
        """Begin a call that arrived whole."""
        stream, head, data = event
        if not self._takes(stream):
            return
        if head.plain and self._open_whole(self, stream, head, data):
            return
        call = self._open_call(self, stream, head, data)
        if call is not None:
            self.calls[stream] = call

    def _on_headers(self, event: HeadersReceived) -> None:
        if not self._takes(event.stream):
            return
        data = b"" if event.ended else None
        call = self._open_call(self, event.stream, event.head, data)
        if call is not None:
            self.calls[event.stream] = call

    def _takes(self, stream: int) -> bool:
        """Whether a call is accepted; clients retry a refused stream elsewhere or later."""
        full = self.outbox.size > _PARKED_BYTES or self._parking.size > _ALL_PARKED_BYTES
        if self._announced_last or full:
            self._core.reject(stream)
            self._on_control_frame(ControlFrame(_REJECTED_COST))
            return False
        return True

    def _on_data_received(self, event: DataReceived) -> None:
        call = self.calls.get(event.stream)
        if isinstance(call, GrpcCall | OpenInferStream):
            call.feed(event.data, event.size, ended=event.ended)
            if event.ended:
                call.end()
        elif event.ended:
            self.outbox.ended(event.stream)
        else:
            self.outbox.reset_unfinished(event.stream)

    def _on_stream_reset(self, event: StreamReset) -> None:
        self.outbox.forget(event.stream)
        call = self.calls.pop(event.stream, None)
        if call is not None:
            call.leave()
            if not self.calls:
                self._note_called()

    def _on_window_opened(self, event: WindowOpened) -> None:
        if event.stream:
            self.outbox.resume_one(event.stream)
        else:
            self.outbox.resume()

    def _on_control_frame(self, event: ControlFrame) -> None:
        if self._proxied and event.forwarded:
            return  # it takes time of the connection's turn, and costs nothing else
        calm = self._bucket.add(self._heard, event.cost)
        if event.forwarded:
            calm = self._cancelled.add(self._heard, event.cost) and calm
        if not calm:
            logger.warning("a client floods its connection, which is closed")
            self._break(Reason.ENHANCE_YOUR_CALM)

    def _on_pong(self, event: PongReceived) -> None:
        if event.data == _DRAIN_PING:
            self._announce_last()

    def _on_goaway_received(self, event: GoAwayReceived) -> None:
        """The client begins no more calls, and waits for the answers to its open ones."""
        if event.reason != Reason.NO_ERROR:
            self._end()
            return
        self._draining = self._announced_last = True
        self._end_if_done()

    def _announce_last(self) -> None:
        if not self._closed and not self._announced_last:
            self._announced_last = True
            self._core.goaway(self._core.last_stream)
            self._wake()
            self._end_if_done()

    def _break(self, reason: Reason) -> None:
        if not self._closed:
            self._core.goaway(self._core.last_stream, reason)
            self._end()

    def _note_called(self) -> None:
        self._called = monotonic()
        if self._announced_last:
            self._loop.call_soon(self._end_if_done)

    def _end_if_done(self) -> None:
        if not self.calls and self.outbox.is_empty:
            self._end()

    def _end(self) -> None:
        if not self._closed:
            self._write()
            self._closed = True
            self._leave_calls()
            self.transport.close()

    def _abort(self) -> None:
        self._closed = True
        self._leave_calls()
        self.transport.abort()

    def _leave_calls(self) -> None:
        self.outbox.clear()
        for call in self.calls.values():
            call.leave()
        self.calls.clear()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the unsent frames."""
        self._waking = False
        if self._closed:
            return
        self._write()
        if self._announced_last:
            self._end_if_done()

    def _write(self) -> None:
        out = self._core.out
        if out:
            self.transport.write(b"".join(out))
            out.clear()

    def _tick(self) -> None:
        times, now = self._times, monotonic()
        self._timer = self._loop.call_later(times.tick, self._tick)
        if self._is_stuck(now) or (not self._core.greeted and now - self._made >= times.preface):
            self._abort()
        if self._closed:
            return
        self.outbox.reset_all_unfinished()
        if not self.calls and now - self._called >= times.idle:
            self.drain()
        elif now - self._heard >= times.silence:
            if self._pinged:
                self._abort()
                return
            self._pinged = True
            self._heard = now
            self._core.ping(_ALIVE_PING)
            self._wake()

    def _is_stuck(self, now: float) -> bool:
        """Whether the client reads too little, also while the connection closes."""
        if self._stalled is None:
            if self._closed:
                self._stalled = now, self.transport.get_write_buffer_size()
            return False
        since, before = self._stalled
        if now - since < self._times.stall:
            return False
        size = self.transport.get_write_buffer_size()
        self._stalled = now, size
        return before - size < self._times.stall_bytes


def _speaks_http2(transport: asyncio.BaseTransport) -> bool:
    """Whether TLS, if it is used, negotiated h2."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return tls is None or tls.selected_alpn_protocol() == "h2"


def _peer(name: Any) -> str:
    """Return an address in the form of gRPC."""
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
