"""The path of an infer request: from uvicorn's parser to the scheduler and back.

`InferProtocol` answers each POST to the infer path of a model that is served here, in any
spelling. Everything else goes to the ASGI application in uvicorn's own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mlctl.services.online.http.connection.limits import LimitedProtocol, is_host
from mlctl.services.online.http.fields import fields_of
from mlctl.services.online.http.inference import InferExchange, InferHandler, plain_target
from mlctl.services.online.http.responses import Headers, Response, render_headers, to_wire

_EXPECTED = b"100-continue"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\n%b"
_LENGTH_TIMING_ID = b"content-length: %d\r\nserver-timing: %b\r\nx-request-id: %b\r\n"
_MORE_AND_BODY = b"%b\r\n%b"
_JSON_ANSWER = _OK + b"content-type: application/json\r\n" + _LENGTH_TIMING_ID + _MORE_AND_BODY
_BINARY_ANSWER = (
    _OK + b"content-type: application/octet-stream\r\n" + _LENGTH_TIMING_ID
    + b"inference-header-content-length: %d\r\n" + _MORE_AND_BODY
)  # fmt: skip


class _NoEvent:
    """In place of the event that uvicorn sets in each cycle: no coroutine waits for it."""

    def set(self) -> None:
        """Do nothing."""


class InferCycle(InferExchange):
    """One request and its response, with the attributes that uvicorn reads of a cycle."""

    message_event = _NoEvent()
    response_started = False
    disconnected = False

    def __init__(
        self,
        protocol: InferProtocol,
        handler: InferHandler,
        headers: Mapping[bytes, bytes],
        *,
        keep_alive: bool,
        expects: bool,
    ) -> None:
        self.inflight = handler.inflight
        self.keep_alive = keep_alive
        self.handler = handler
        self._protocol = protocol
        self.headers = headers
        self.expects = expects

    def proceed(self) -> None:
        self._protocol.transport.write(_CONTINUE)

    def disconnect(self) -> None:
        self.disconnected = True
        super().disconnect()

    def render(
        self,
        timing: bytes,
        body: bytes,
        header_length: int | None,
        extra: Sequence[tuple[bytes, bytes]],
    ) -> bytes:
        more = b""
        if extra or not self.keep_alive:
            close = () if self.keep_alive else ((b"connection", b"close"),)
            more = render_headers((*extra, *close))
        headers, request_id = self._protocol.server_headers(), self.request_id
        if header_length is None:
            return _JSON_ANSWER % (headers, len(body), timing, request_id, more, body)
        return _BINARY_ANSWER % (headers, len(body), timing, request_id, header_length, more, body)

    def send(self, response: bytes) -> None:
        protocol = self._protocol
        if protocol.transport.is_closing():
            return
        protocol.transport.write(response)
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()

    def send_error(self, response: Response) -> None:
        if self.expects and self.more_body:
            # The client may never send the body, and the server would take its next request for it.
            self.keep_alive = False
        headers = self._protocol.server_headers()
        self.send(to_wire(response, headers, close=not self.keep_alive))


class InferProtocol(LimitedProtocol):
    """One connection; see `infer_protocol`.

    `handler` belongs to the model of the last request, or to the first model before any request.
    """

    handlers: ClassVar[Mapping[bytes, InferHandler]]
    handler: InferHandler
    cycle: Any
    # The server's own headers, of which uvicorn makes a new list every second, and as lines.
    headers_source: ClassVar[Headers] = []
    header_lines: ClassVar[bytes] = b""

    def data_received(self, data: bytes) -> None:
        if self.handler.rejecting and self._is_between_requests():
            rejection = self.handler.reject_unparsed(data, self.server_headers())
            if rejection is not None:
                self.transport.write(rejection)
                self.on_response_complete()
                return
        super().data_received(data)

    def _is_between_requests(self) -> bool:
        """Whether the next byte begins a request, which can be answered now."""
        if self.cycle is None or not self.cycle.response_complete or self._unread:
            return False
        busy = self._in_head or self._in_body or self._broken or self._leaving or self._waits
        return not (busy or self.flow.write_paused or self.transport.is_closing())

    def on_message_begin(self) -> None:
        # No ASGI scope yet: infer requests need none.
        self._in_head = self._progress = True
        self.url = b""
        self.headers = []

    def on_headers_complete(self) -> None:
        parser = self.parser
        upgrades = parser.should_upgrade()
        if upgrades and self._is_ignored_upgrade():
            return
        handler = None
        if not upgrades and parser.get_method() == b"POST":
            handler = self.handlers.get(self.url) or self.handlers.get(plain_target(self.url))
        if handler is None:
            url, headers = self.url, self.headers
            super().on_message_begin()
            self.url = url
            self.headers += headers  # the scope has this very list
            super().on_headers_complete()
            return
        fields, count = dict(self.headers), len(self.headers)
        several = len(fields) != count
        if several:
            fields = fields_of(self.headers)
        version = parser.get_http_version()
        if (
            several
            or version != "1.1"
            or not is_host(fields.get(b"host", b"?"))
            or b"transfer-encoding" in fields
            or self.url not in self.handlers
            or count > self.max_headers
            or self._read_bytes > self.max_head_bytes
        ):
            self._check_head()
        if self.cycle is not None and not self.cycle.response_complete:
            self._reject_head(400, "The request came before the answer to an earlier one.")
        self._end_head()
        keep_alive = not self._leaving and parser.should_keep_alive()
        expects = b"expect" in fields and fields[b"expect"].lower() == _EXPECTED
        # A client of HTTP/1.0 can keep the connection or wait for 100 Continue only by a header.
        if b"connection" in fields or expects:
            current = version != "1.0"
            keep_alive, expects = keep_alive and current, expects and current
        self.handler = handler
        self.cycle = InferCycle(self, handler, fields, keep_alive=keep_alive, expects=expects)
        self.cycle.begin()

    def on_body(self, body: bytes) -> None:
        if type(self.cycle) is InferCycle:
            self._progress = True
            self.cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if type(cycle) is not InferCycle:
            super().on_message_complete()
        elif not self._ignores_upgrade:
            self._end_body()
            cycle.submit()

    def _await_rest(self, size: int) -> None:
        super()._await_rest(size)
        if self._in_body and type(self.cycle) is InferCycle:
            self.cycle.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self.cycle, InferCycle):
            self.cycle.disconnect()
        super().connection_lost(exc)

    def server_headers(self) -> bytes:
        """Return the server's own header lines."""
        headers = self.server_state.default_headers
        if headers is not self.headers_source:
            kind = type(self)
            kind.headers_source, kind.header_lines = headers, render_headers(headers)
        return self.header_lines

    def note_rejection(self, status: int) -> None:
        """Count a connection that was rejected before a request was complete."""
        self.handler.connection_rejected(status)

    def _abandon(self) -> None:
        if isinstance(self.cycle, InferCycle):
            self.cycle.disconnect()
        else:
            super()._abandon()


def infer_protocol(*handlers: InferHandler) -> type[InferProtocol]:
    """Return the protocol class of a server of one model, or of several."""
    attributes = {
        "handler": handlers[0],
        "handlers": {target: each for each in handlers for target in each.targets},
    }
    return type("ModelProtocol", (InferProtocol,), attributes)
