"""One connection of gRPC clients: HTTP/2's events to calls, with limits on what a client can hold.

The protocol's own rules (frames, streams, windows, header compression) are h2's.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from h2 import events
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from bundle.errors import MlctlError
from services.lean_grpc.call import Call
from services.lean_grpc.core import CONNECTION_WINDOW_BYTES, MAX_STREAMS, make_core
from services.lean_grpc.guard import Bucket
from services.lean_grpc.head import Head, MalformedError, fields_of, parse_head
from services.lean_grpc.outbox import Outbox

_LAST_STREAM = (1 << 31) - 1
_DRAIN_PING = b"mlctlend"
_ALIVE_PING = b"mlctlpng"
# A window's update is much of what an honest client sends.
_UPDATE_DROPS = 0.125
logger = logging.getLogger("mlctl.grpc")


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds: how often a connection is looked at, and how long what may take.

    `preface` is until it has become an HTTP/2 connection, `silence` until a client is asked
    whether it is there and then until it is given up, `idle` without a call until it is told to
    come again, `farewell` until a client must have heard that the server stops. A client that
    reads must take `stall_bytes` in each `stall`.
    """

    tick: float = 5.0
    preface: float = 10.0
    silence: float = 60.0
    idle: float = 1800.0
    farewell: float = 1.0
    stall: float = 10.0
    stall_bytes: int = 4 << 10


OpenCall = Callable[["Connection", int, Head, bool], Call]


class Connection(asyncio.Protocol):
    """One connection. `open_call` makes and begins a call: of which stream, whether that ended.

    `connections` has all that are open, of which there may be `most`.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        open_call: OpenCall,
        connections: set[Connection],
        most: int,
        times: Times,
    ) -> None:
        self._open_call = open_call
        self._connections = connections
        self._most = most
        self._times = times
        self._core = make_core()
        self.gone = asyncio.get_running_loop().create_future()
        self.outbox = Outbox(self._core, self._wake)
        self.peer = ""
        self._calls: dict[int, Call] = {}
        self._credit = 0
        self._waking = False
        self._closed = False
        self._greeted = False
        self._draining = False
        self._told_last = False
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            events.RequestReceived: self._on_request,
            events.DataReceived: self._on_data,
            events.StreamEnded: self._on_end,
            events.StreamReset: self._on_reset,
            events.WindowUpdated: self._on_window,
            events.RemoteSettingsChanged: self._on_settings,
            events.PingReceived: self._on_noise,
            events.PriorityUpdated: self._on_noise,
            events.PingAckReceived: self._on_ping_ack,
            events.ConnectionTerminated: self._on_goaway,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._connections.add(self)
        if len(self._connections) > self._most or not _speaks_http2(transport):
            self._abort()
            return
        self.peer = _peer(transport.get_extra_info("peername"))
        now = self._loop.time()
        self._bucket = Bucket(now)
        self._made = self._heard = self._called = now
        self._asked = False
        self._stalled: tuple[float, int] | None = None
        self._timer = self._loop.call_later(self._times.tick, self._tick)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._closed = True
        self._connections.discard(self)
        if hasattr(self, "_timer"):
            self._timer.cancel()
        self._leave_calls()
        self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._write()  # h2 forgets what it has to send when the client says goodbye
        self._heard = self._loop.time()
        self._asked = False
        try:
            for event in self._core.receive_data(data):
                handle = self._handlers.get(type(event))
                if handle is not None and not self._closed:
                    handle(event)
            self._wake()
        except ProtocolError as error:
            logger.info("a connection broke HTTP/2's rules: %s", type(error).__name__)
            self._end()
        except Exception:
            logger.exception("a connection failed")
            self._end()

    def pause_writing(self) -> None:
        """The client reads too slowly: it is not read from, either."""
        self.outbox.paused = True
        self._stalled = self._loop.time(), self.transport.get_write_buffer_size()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.outbox.paused = False
        self._stalled = None
        if not self._closed:
            self.transport.resume_reading()
            self.outbox.resume()

    def consumed(self, stream: int, size: int) -> None:
        """Let the client send so many bytes more on the stream."""
        if not self._closed:
            self._core.increment_flow_control_window(size, stream)
            self._wake()

    def over(self, call: Call) -> None:
        """Forget the call."""
        self._bucket.answered()
        if self._calls.pop(call.stream, None) is not None and not self._calls:
            self._called = self._loop.time()
            if self._told_last:
                self._loop.call_soon(self._end_if_done)

    def drain(self) -> None:
        """Ask the client to send its next calls elsewhere; end when those on the way are answered.

        First all streams are still taken. Only when the client has surely heard it is the
        last one named, so that no call is lost between.
        """
        if self._closed or self._draining:
            return
        self._draining = True
        self._goaway(_LAST_STREAM)
        self._core.ping(_DRAIN_PING)
        self._wake()
        self._loop.call_later(self._times.farewell, self._tell_last)

    def stop(self, reason: MlctlError) -> None:
        """End all calls with the status of `reason`, and the connection."""
        for call in list(self._calls.values()):
            call.stop(reason)
        self._end()

    def _on_request(self, event: events.RequestReceived) -> None:
        stream = event.stream_id
        assert stream is not None
        if self._told_last or len(self._calls) >= MAX_STREAMS:
            self.outbox.reset(stream, ErrorCodes.REFUSED_STREAM)  # the client may ask again
            return
        try:
            head = parse_head(fields_of(event.headers or ()))
        except MalformedError:
            self.outbox.reset(stream, ErrorCodes.PROTOCOL_ERROR)
            return
        call = self._open_call(self, stream, head, event.stream_ended is not None)
        if not call.done:
            self._calls[stream] = call

    def _on_data(self, event: events.DataReceived) -> None:
        size = event.flow_controlled_length or 0
        self._credit += size
        if self._credit > CONNECTION_WINDOW_BYTES // 4:
            self._core.increment_flow_control_window(self._credit)
            self._credit = 0
        ended = event.stream_ended is not None
        stream = event.stream_id or 0
        call = self._calls.get(stream)
        if not event.data and not ended:
            self._note(1.0)
        if call is not None:
            call.feed(event.data or b"", size, ended=ended)
        elif not ended:
            self.outbox.refuse_rest(stream)

    def _on_end(self, event: events.StreamEnded) -> None:
        stream = event.stream_id or 0
        call = self._calls.get(stream)
        if call is not None:
            call.end()
        else:
            self.outbox.ended(stream)

    def _on_reset(self, event: events.StreamReset) -> None:
        stream = event.stream_id or 0
        self.outbox.forget(stream)
        call = self._calls.pop(stream, None)
        if call is not None:
            call.leave()
        self._note(1.0)

    def _on_window(self, _event: events.WindowUpdated) -> None:
        self._note(_UPDATE_DROPS)
        if not self.outbox.is_empty:
            self.outbox.resume()

    def _on_settings(self, _event: events.RemoteSettingsChanged) -> None:
        self._greeted = True
        self._note(1.0)
        self.outbox.resume()

    def _on_noise(self, _event: events.PingReceived | events.PriorityUpdated) -> None:
        self._note(1.0)

    def _on_ping_ack(self, event: events.PingAckReceived) -> None:
        if event.ping_data == _DRAIN_PING:
            self._tell_last()

    def _on_goaway(self, event: events.ConnectionTerminated) -> None:
        """The client begins nothing more. It still waits for what it asked, which h2 forbids."""
        if event.error_code != ErrorCodes.NO_ERROR:
            self._end()
            return
        self._core.state_machine.state = ConnectionState.SERVER_OPEN
        self._draining = self._told_last = True
        self._end_if_done()

    def _note(self, drops: float) -> None:
        if not self._bucket.add(self._heard, drops) and not self._closed:
            logger.warning("a client floods its connection, which is closed")
            self._core.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self._end()

    def _tell_last(self) -> None:
        if not self._closed and not self._told_last:
            self._told_last = True
            self._goaway(self._core.highest_inbound_stream_id)
            self._end_if_done()

    def _goaway(self, last_stream: int) -> None:
        # Not by h2: after its own it sends nothing more.
        self._write()
        self.transport.write(GoAwayFrame(0, last_stream_id=last_stream).serialize())

    def _end_if_done(self) -> None:
        if not self._calls and self.outbox.is_empty:
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
        for call in self._calls.values():
            call.leave()
        self._calls.clear()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._waking = False
        if self._closed:
            return
        self._write()
        if self._told_last:
            self._end_if_done()

    def _write(self) -> None:
        data = self._core.data_to_send()
        if data:
            self.transport.write(data)

    def _tick(self) -> None:
        times, now = self._times, self._loop.time()
        self._timer = self._loop.call_later(times.tick, self._tick)
        if self._is_stuck(now) or (not self._greeted and now - self._made >= times.preface):
            self._abort()
        if self._closed:
            return
        self.outbox.refuse_rests()
        if not self._calls and now - self._called >= times.idle:
            self.drain()
        elif now - self._heard >= times.silence:
            if self._asked:
                self._abort()
                return
            self._asked = True
            self._heard = now
            self._core.ping(_ALIVE_PING)
            self._wake()

    def _is_stuck(self, now: float) -> bool:
        """Whether the client takes nothing of what waits for it; also while it is closed."""
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
    """Whether TLS, if there is any, agreed on it."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return tls is None or tls.selected_alpn_protocol() == "h2"


def _peer(name: Any) -> str:
    """An address as gRPC writes it."""
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
