"""uvicorn's HTTP protocol with limits on slow, endless and malformed requests.

A head has a size, a number of headers and a time; an unread response, and the
rest of a body that was rejected, have a time as well. A client that ends its sending half of the
connection is gone. Requests are parsed one by one: the next one waits, unread and with reading
paused, until the answer is complete, so that no error overtakes an answer.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from time import monotonic
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlctl.services.online.batching.admission import BusyError
from mlctl.services.online.http.responses import (
    error_response,
    make_response,
    render_headers,
    to_wire,
)
from mlctl.services.online.turns import Turns, turns_of

_NOT_HTTP = "Invalid HTTP request received."
_MANY_HEADERS = "The request has too many headers."
_LARGE_HEAD = "The head of the request is too large."
_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})
_EMPTY_LINE = b"\r\n\r\n"
# Smaller reads are searched for a second request, of larger ones the head is parsed first.
_SMALL_BYTES = 8 << 10
# RFC 9110 (7.2) and RFC 3986 (3.2.2): a name or an address, perhaps with a port.
_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
# Tabs may surround a value (RFC 9112, 5.1), but the parser accepts none around this one.
_LENGTH_WITH_TAB = re.compile(
    rb"(\r\ncontent-length:)[ \t]*+([0-9]++)[ \t]*+(?=\r\n)", re.IGNORECASE
)


class _HeadError(Exception):
    """A head that is rejected: too large, or against the rules of HTTP/1.1."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. The class attributes are its limits, in bytes and seconds."""

    max_head_bytes = 64 << 10
    max_headers = 128
    max_connections = 4096
    # The keep-alive time between requests; None takes uvicorn's setting.
    idle_seconds: int | None = None
    head_seconds = 10.0
    drain_seconds = 10.0
    # A rejected connection stays open for this time, so that its client can read the answer.
    rejection_seconds = 1.0
    # At shutdown an idle connection stays open for this time, for a request that is in transit.
    farewell_seconds = 0.5
    # A client must read `stall_bytes` in each `stall_seconds` while an answer waits to be sent.
    stall_seconds = 10.0
    stall_bytes = 4 << 10

    transport: asyncio.Transport
    _in_head = True
    _in_body = False
    _broken = False
    _rejected_head: tuple[int, str] | None = None
    # The time of the last response, on the loop's clock.
    _idle_since = 0.0
    # The number of bytes read since the head began.
    _read_bytes = 0
    # Whether the last read began or ended a head or had a part of a body, and the number of bytes
    # since a read did: the parser keeps unfinished headers and trailers in memory.
    _progress = False
    _unfinished_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _drain_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _leave_timer: asyncio.TimerHandle | None = None
    _leaving = False
    _ignores_upgrade = False
    # What was received; from `_at` on it is not parsed. The bytes before may have the start of an
    # empty line. Reading is paused while it `_waits`.
    _unread = b""
    _at = 0
    _waits = False
    # Whether `_proceed` is running, or will be called in this connection's turn.
    _proceeds = False
    # The bytes of the body that follow, where only they may be parsed next.
    _body_bytes = 0
    _turns: Turns
    # When it last spent more than a turn's share.
    _charged = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.idle_seconds is not None:
            self.timeout_keep_alive = self.idle_seconds

    @property
    def answering(self) -> bool:
        """Whether a request's answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._turns, self._charged = turns_of(self.loop), monotonic()
        if len(self.connections) > self.max_connections:
            self._reject_connection()
        else:
            self._arm_head()

    def connection_lost(self, exc: Exception | None) -> None:
        timers = (self._head_timer, self._drain_timer, self._stall_timer, self._leave_timer)
        for timer in (*timers, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._broken or self.transport.is_closing():
            return
        self._unread += data
        if not self._proceeds:
            self._proceed()

    def _proceed(self) -> None:
        """Parse what was received, request by request, for this connection's share of a tick.

        The rest waits for the next turn, and for the answer to the request before it.
        """
        turns, flow, data, at, spent = self._turns, self.flow, self._unread, self._at, 0.0
        size, self._proceeds, clock = len(data), True, turns.clock
        begun = clock()
        while at < size and spent <= turns.share and not (self._broken or flow.write_paused):
            cycle = self.cycle
            waits = cycle is not None and not cycle.response_complete and not self._in_body
            if waits or self.transport.is_closing():
                break
            at = self._parse_next(data, at, size)
            spent = clock() - begun
        self._proceeds, self._at = False, at
        if self._broken or self.transport.is_closing():
            at = size  # the rest is discarded
        debt = self._debt(spent) if spent > turns.share else 0.0
        if at < size or debt > 0.0:
            self._waits = True
            flow.pause_reading()
            if spent > turns.share:
                self._take_turn(debt)
            return
        self._unread, self._at = b"", 0
        if (self._in_head or self._in_body) and not self._body_bytes:
            self._unread, self._at = data[-3:], min(size, 3)
        if self._waits:
            self._waits = False
            if not flow.write_paused:
                flow.resume_reading()

    def _debt(self, spent: float) -> float:
        now = monotonic()
        rested, self._charged = now - self._charged, now
        return self._turns.debt(spent, rested)

    def _take_turn(self, debt: float = 0.0) -> None:
        """Go on with the unread bytes in a later tick, once the `debt` in seconds is paid."""
        self._proceeds = True
        self._turns.wait(self.transport, self._proceed, debt)

    def _parse_next(self, data: bytes, at: int, size: int) -> int:
        """Parse `data` from `at` on, up to the end of one request at most; return where it stopped.

        A head or a body in chunks ends with an empty line, another body after its length. So no
        request is parsed while the one before it has no answer.
        """
        if self._body_bytes:
            stop = end = min(size, at + self._body_bytes)
            self._body_bytes -= stop - at
        else:
            end = data.find(_EMPTY_LINE, at - 3 if at > 3 else 0) + 4
            # In most reads there is one request alone.
            alone = size - end <= _SMALL_BYTES and data.find(_EMPTY_LINE, end) < 0
            stop = size if alone or end < 4 else end
        piece, in_body = data[at:stop], self._in_body
        if b"\t" in piece and not in_body:
            head, empty_line, body = piece.partition(_EMPTY_LINE)
            piece = _LENGTH_WITH_TAB.sub(rb"\1\2", head + empty_line) + body
        self._progress = False
        self._read_bytes = stop - at + (self._read_bytes if self._in_head else 0)
        try:
            self.parser.feed_data(piece)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self._parse_rest(piece, error)
        if self._in_head or self._in_body:
            if self._in_body and not in_body:
                self._body_bytes = max(0, self._declared_bytes() - (stop - end))
            self._await_rest(stop - at)
        elif self.timeout_keep_alive_task is None and not self.answering:
            self._arm_head()  # blank lines alone must not hold the connection either
        return stop

    def _declared_bytes(self) -> int:
        """Return the body's declared length, or 0 for a body in chunks."""
        return next((int(value) for name, value in self.headers if name == b"content-length"), 0)

    def _await_rest(self, size: int) -> None:
        """Limit the bytes and the time of a request whose end was not in a read of `size` bytes."""
        self._unfinished_bytes = 0 if self._progress else self._unfinished_bytes + size
        if self._unfinished_bytes > self.max_head_bytes:
            self._reject_flood()
        elif self._in_head:
            if self.headers is not None and len(self.headers) > self.max_headers:
                self._fail(431, _MANY_HEADERS)
            self._arm_head()

    def _parse_rest(self, data: bytes, error: Exception) -> None:
        """Go on after the parser stopped with `error` within `data`.

        It stops at the end of a head that offers another protocol and takes the body for bytes of
        that protocol. A server may ignore such an offer (RFC 9110, 7.8), so the head is fed again
        without it, except for websockets.
        """
        while isinstance(error, httptools.HttpParserUpgrade):
            if not self._ignores_upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                else:
                    self._unsupported_upgrade_warning()
                return
            data = self._head_without_upgrade() + bytes(data[error.args[0] :])
            self._ignores_upgrade = False
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            try:
                self.parser.feed_data(data)
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as found:
                error = found
            else:
                return
        self.logger.warning(_NOT_HTTP)
        self.send_400_response(_NOT_HTTP)

    def _is_ignored_upgrade(self) -> bool:
        """Whether the head that ends now will be fed again without its offer of a protocol."""
        parser = self.parser
        if not parser.should_upgrade():
            return False
        self._ignores_upgrade = parser.get_method() != b"CONNECT" and not self._should_upgrade()
        return self._ignores_upgrade

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = [token for token in tokens if token.lower() not in _UPGRADE_HEADERS]
                lines.append(b"connection: %b" % b", ".join(kept))
            elif name not in _UPGRADE_HEADERS:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._in_head = self._progress = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Does not call the inherited method, to save time: this runs for each header.
        if self._in_head:  # trailers are ignored
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_ignored_upgrade():
            return
        self._check_head()
        if self.answering:
            self._reject_head(400, "The request came before the answer to an earlier one.")
        expected = [value.lower() for name, value in self.headers if name == b"expect"]
        self.expect_100_continue = b"100-continue" in expected
        super().on_headers_complete()
        self._end_head()  # not before: uvicorn may reject the target
        if self._leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignores_upgrade:
            return
        self._end_body()
        super().on_message_complete()

    def _end_body(self) -> None:
        self._in_body = False
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def on_response_complete(self) -> None:
        # In place of the inherited method, which makes a new timer for each response.
        self.server_state.total_requests += 1
        flow = self.flow
        if self.transport.is_closing():
            self._watch_close()
        else:
            if self._waits:
                self._go_on()
            elif flow.read_paused:
                flow.resume_reading()
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._arm_keep_alive(self.timeout_keep_alive)
        if flow.write_paused:
            flow.pause_reading()
        if self._in_body and not self.answering:
            self._drain()

    def _go_on(self) -> None:
        """Parse what waits: the answer before it is complete, or its client reads again."""
        if not self._proceeds:
            self._take_turn()

    def _unset_keepalive_if_required(self) -> None:
        """Leave the keep-alive timer alone, which uvicorn cancels: it checks when it fires."""

    def _arm_keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def shutdown(self) -> None:
        """End the connection after the answer to its request, or to one that is in transit.

        Closing an idle connection at once would lose a request that its client just sent.
        """
        if self.answering or self._broken:
            super().shutdown()
        elif not self._leaving:
            self._leaving = True
            self._leave_timer = self.loop.call_later(self.farewell_seconds, super().shutdown)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for the keep-alive time, else wait for the rest.

        A request that arrives meanwhile has other timers; the response to it starts this one anew.
        """
        self.timeout_keep_alive_task = None
        seconds = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self.answering or self._in_body or self._head_timer is not None:
            return
        if seconds > 0:
            self._arm_keep_alive(seconds)
        else:
            super().timeout_keep_alive_handler()
            self._watch_close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()
        if self._stall_timer is None:
            self._watch_stall(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._watch_close()
        if self._waits:
            self._go_on()
        elif not self._broken:
            self.flow.resume_reading()

    def eof_received(self) -> None:
        """Treat the end of what a client sends as its disconnect, as nginx does."""
        self._close()

    def handle_websocket_upgrade(self) -> None:
        if self._waits:
            self._fail(400, "An upgrade came before the answer to an earlier request.")
        else:
            super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        if self._rejected_head is not None:
            self._fail(*self._rejected_head)
        else:
            self._fail(400, msg)

    def note_rejection(self, status: int) -> None:
        """Called when a connection is answered `status` before a request; a subclass counts it."""

    def _check_head(self) -> None:
        """Reject a head that is too large or breaks a rule of RFC 9112: 2.3, 3.2, 6.1.

        HTTP/1.0 needs no Host. A head that arrived in one read was never unfinished, so its limits
        are checked here.
        """
        if len(self.headers) > self.max_headers:
            self._reject_head(431, _MANY_HEADERS)
        if self._read_bytes > self.max_head_bytes:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > self.max_head_bytes:
                self._reject_head(431, _LARGE_HEAD)
        version = self.parser.get_http_version()
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and (hosts or version != "1.0"):
            self._reject_head(400, "The request needs exactly one Host header.")
        if hosts and not is_host(hosts[0]):
            self._reject_head(400, "The Host header is no host.")
        if version not in ("1.0", "1.1"):
            self._reject_head(400, "The request is not HTTP/1.1 or HTTP/1.0.")
        if b"#" in self.url:
            self._reject_head(400, "The request target has a fragment.")
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and version == "1.0":
            self._reject_head(400, "HTTP/1.0 has no Transfer-Encoding.")
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
            self._reject_head(501, "The only transfer coding is chunked.")

    def _reject_head(self, status: int, message: str) -> None:
        self._rejected_head = status, message
        raise _HeadError

    def _end_head(self) -> None:
        self._in_head = False
        self._in_body = self._progress = True
        if self._head_timer is not None:
            self._disarm_head()

    def _arm_head(self) -> None:
        if self._head_timer is None and not self._broken:
            self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _disarm_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head and self.answering:
            self._arm_head()  # its rest may wait for the answer
        elif self._in_head and self.headers is not None:
            self._fail(408, "The head of the request did not come in time.")
        elif not self.answering:
            self._close()

    def _fail(self, status: int, message: str) -> None:
        """Answer `status` once and close, after the answers to earlier requests."""
        if self._broken:
            return
        self._broken = True
        self._disarm_head()
        waiting = self.cycle if self.answering else None
        if waiting is not None and (self._in_head or not waiting.more_body):
            waiting.keep_alive = False
            self.flow.pause_reading()
            return
        rejected = self._in_body and waiting is None
        if rejected or (waiting is not None and waiting.response_started):
            self._close()
            return
        if waiting is not None:
            self._abandon()
        else:
            self.note_rejection(status)
        response = make_response(status, b"text/plain; charset=utf-8", message.encode())
        headers = render_headers(self.server_state.default_headers)
        self.transport.write(to_wire(response, headers, close=True))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._drain()

    def _reject_connection(self) -> None:
        """Send 503 before reading anything. The connection does not count toward the limit."""
        self._broken = True
        self.connections.discard(self)
        self.note_rejection(503)
        rejection = error_response(
            BusyError(f"the server has its limit of {self.max_connections} connections already")
        )
        headers = render_headers(self.server_state.default_headers)
        self.transport.write(to_wire(rejection, headers, close=True))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._drain_timer = self.loop.call_later(self.rejection_seconds, self.transport.abort)

    def _reject_flood(self) -> None:
        if self._in_head:
            self._fail(431, _LARGE_HEAD)
        else:
            self._fail(400, "The body's chunks are mostly framing.")

    def _abandon(self) -> None:
        """Withdraw the open request: its client has already received an error."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _close(self) -> None:
        self.transport.close()
        self._watch_close()

    def _drain(self) -> None:
        """Read and discard the rest: a close would reset the connection before the answer."""
        if self._drain_timer is None:
            self._drain_timer = self.loop.call_later(self.drain_seconds, self.transport.abort)

    def _watch_close(self) -> None:
        """Limit the time for which a closing connection waits for its client to read the rest."""
        if self.transport.is_closing() and self._stall_timer is None:
            self._watch_stall(self.transport.get_write_buffer_size())

    def _watch_stall(self, size: int) -> None:
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_stall, size)

    def _check_stall(self, before: int) -> None:
        size = self.transport.get_write_buffer_size()
        if before - size < self.stall_bytes:
            self.transport.abort()
        else:
            self._watch_stall(size)


@lru_cache(maxsize=256)
def is_host(value: bytes) -> bool:
    """Return whether `value` is a valid Host header, which may be empty."""
    return _HOST.fullmatch(value) is not None
