"""The path of an infer request: from uvicorn's parser to the batcher and back.

`InferProtocol` answers each POST to the infer path of a model that is served here, in any
spelling, pipelined or not. Everything else goes to the ASGI application in uvicorn's own way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

import httptools

from bundle.errors import MlctlError
from services.online.batching.executor import Answer
from services.online.batching.scheduler import deadline_exceeded
from services.online.http.connection.known import KnownRequest, KnownRequests
from services.online.http.connection.limits import LimitedProtocol
from services.online.http.connection.repeated import NoEvent, RepeatCycle, RepeatDesk
from services.online.http.fields import fields_of
from services.online.http.inference import InferHandler, PendingRequest, RequestHead
from services.online.http.responses import Headers, Response, render_headers, to_wire
from services.online.observability.calls import RequestRecord

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# After this many requests in a row without a repetition, a connection stops looking for one.
_MOST_LESSONS = 8


class DefaultHeaders:
    """The server's own headers as bytes; uvicorn makes a new list of them every second."""

    def __init__(self) -> None:
        self._seen: Headers = []
        self._rendered = b""

    def render(self, headers: Headers) -> bytes:
        """`headers` as lines."""
        if headers is not self._seen:
            self._seen, self._rendered = headers, render_headers(headers)
        return self._rendered


class Route(NamedTuple):
    """The objects that answer the requests to one model."""

    inference: InferHandler
    desk: RepeatDesk
    memory: KnownRequests


class InferCycle:
    """One request and its answer, with the attributes that uvicorn's protocol reads of a cycle.

    A pipelined request `waits` until `begin`: it keeps what arrives and answers nothing.
    `expects` is whether the client waits for 100 Continue before it sends the body.
    """

    __slots__ = (
        "_body", "_end", "_error", "_expects", "_headers", "_hold", "_inference", "_protocol",
        "_request_id", "_seen", "_timer", "asked", "disconnected", "head", "keep_alive",
        "more_body", "response_complete", "route", "waits",
    )  # fmt: skip
    message_event = NoEvent()
    response_started = False

    def __init__(
        self,
        protocol: InferProtocol,
        route: Route,
        headers: Mapping[bytes, bytes],
        *,
        keep_alive: bool,
        expects: bool,
    ) -> None:
        self.route = route
        self.keep_alive = keep_alive
        self.waits = True
        self.disconnected = False
        self.more_body = True
        self.response_complete = False
        self._protocol = protocol
        self._inference = route.inference
        self._headers = headers
        self._expects = expects
        self._end = 0.0
        self._request_id = b""
        self._seen: RequestRecord | None = None
        self.head: RequestHead | None = None
        self._hold = route.inference.hold()
        self._body: bytes | bytearray = b""
        self._error: MlctlError | None = None
        self.asked: PendingRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Check the headers; all earlier requests of the connection are answered."""
        inference, headers = self._inference, self._headers
        self.waits = False
        self._end = self._protocol.loop.time() + inference.seconds
        self._request_id = inference.request_id(headers)
        self._seen = inference.watch(headers, self._request_id, self._protocol.client)
        try:
            inference.admit(headers)
            self.head = inference.open(headers, self._request_id, self._seen)
            if self._error is not None:
                raise self._error
        except MlctlError as error:
            self._refuse(error)
            return
        if self._expects and self.more_body:
            self._protocol.transport.write(_CONTINUE)

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.response_complete or not self.more_body or self._error is not None:
            return  # a body after the body is that of a pipelined upgrade
        try:
            size = len(self._body) + len(piece)
            self._inference.check_size(size)
            self._hold.grow(size)
        except MlctlError as error:
            if self.waits:
                self._error, self._body = error, b""
                self._hold.release()
            else:
                self._refuse(error)
            return
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body)
            self._body += piece
        else:
            self._body += piece

    def watch(self) -> None:
        """Give the rest of the body time until the request's deadline."""
        if self.waits or self.response_complete:
            return
        if self._timer is None and self.more_body:
            loop = self._protocol.loop
            self._timer = loop.call_at(self._end, self._refuse, deadline_exceeded())

    def ask(self) -> None:
        """Ask the model: the body is complete."""
        self.more_body = False
        self._stop_timer()
        if self.response_complete or self.head is None or self.asked is not None:
            return
        left = self._end - self._protocol.loop.time()
        try:
            asked = self._inference.ask(self.head, bytes(self._body), left, self._hold)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self._refuse(error)
            return
        self._body = b""
        self.asked = asked
        asked.future.add_done_callback(self._on_answer)

    def leave(self) -> None:
        """Withdraw the request: its client disconnected."""
        if self.response_complete:
            return
        self.disconnected = True
        if self.asked is not None:
            self.asked.future.cancel()
        self._inference.gone(self._seen)
        self.response_complete = True
        self._let_go()

    def _on_answer(self, future: asyncio.Future[Answer]) -> None:
        if self.response_complete or self.asked is None:
            if not future.cancelled():
                future.exception()  # retrieved, or asyncio logs it
            return
        try:
            response = self._inference.answer(self.asked, future.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged and answered
            self._refuse(error)
        else:
            self._send(response)

    def _refuse(self, error: BaseException) -> None:
        if self._expects and self.more_body:
            # The client may never send the body, and the server would take its next request for it.
            self.keep_alive = False
        self._send(self._inference.refuse(error, self._request_id, self._seen))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _let_go(self) -> None:
        self._stop_timer()
        self._body = b""
        self._hold.release()

    def _send(self, response: Response) -> None:
        self.response_complete = True
        self._let_go()
        self._protocol.send(response, close=not self.keep_alive)


class InferProtocol(LimitedProtocol):
    """One connection; see `infer_protocol`.

    `inference`, `desk` and `memory` belong to the model of the last request, or to the first
    model before any request.
    """

    routes: ClassVar[Mapping[bytes, Route]]
    inference: InferHandler
    desk: RepeatDesk
    memory: KnownRequests
    cycle: Any
    _started: Any = None
    pipeline: deque[tuple[Any, Any]]
    # The template that the next request may repeat, and the number of searches without a match.
    _known: KnownRequest | None = None
    _lessons = 0
    # The time of the last answer, on the loop's clock.
    _rested = 0.0
    default_headers: ClassVar[DefaultHeaders]

    def on_message_begin(self) -> None:
        # No ASGI scope yet: infer requests need none.
        self._in_head = self._progress = True
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        route = self._route()
        if route is None:
            url, headers, expect = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expect
            self.headers += headers  # the scope has this very list
            super().on_headers_complete()
            return
        self._check_head()
        self._end_head()
        parser = self.parser
        current = parser.get_http_version() != "1.0"
        cycle = InferCycle(
            self,
            route,
            fields_of(self.headers),
            keep_alive=current and parser.should_keep_alive() and not self._leaving,
            expects=current and self.expect_100_continue,
        )
        waits, self.cycle = self.answering, cycle
        if waits:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
            return
        self._started = cycle
        if not self.flow.write_paused:  # else `resume_writing` begins it
            self._begin(cycle)

    def on_body(self, body: bytes) -> None:
        if type(self.cycle) is InferCycle:
            self._progress = True
            self.cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if type(self.cycle) is InferCycle:
            self.cycle.ask()

    def data_received(self, data: bytes) -> None:
        known = self._known
        if known is not None and self._repeats(known, data):
            return
        learns = self._lessons < _MOST_LESSONS and not (
            self._in_head or self._in_body or self.answering
        )
        super().data_received(data)
        if type(self.cycle) is not InferCycle:
            return
        if self._in_body:
            self.cycle.watch()
        elif learns and not self._in_head:
            self._learn(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self._started, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, InferCycle | RepeatCycle):
                cycle.leave()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._begin_waiting()

    def send(self, response: Response, *, close: bool) -> None:
        """Write the complete answer to the open request; then continue or close the connection."""
        if self.transport.is_closing():
            return
        self.transport.write(to_wire(response, self.server_headers(), close=close))
        if close:
            self.transport.close()
        self.on_response_complete()

    def send_content(self, content: bytes) -> None:
        """Write the complete answer to the open request of a connection that stays open."""
        if self.transport.is_closing():
            return
        self.transport.write(content)
        flow = self.flow
        if self.timeout_keep_alive_task is None or flow.write_paused or flow.read_paused:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1
            self._rested = self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; a repeated request does not restart this timer."""
        left = self._rested + self.timeout_keep_alive - self.loop.time()
        if self.answering:
            self.timeout_keep_alive_task = None
        elif left > 0:
            later = self.loop.call_later(left, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later
        else:
            super().timeout_keep_alive_handler()

    def server_headers(self) -> bytes:
        """The server's own header lines."""
        return self.default_headers.render(self.server_state.default_headers)

    def note_refusal(self, status: int) -> None:
        """Count a connection that was rejected before a request was complete."""
        self.inference.refused(status, self.client)

    def _abandon(self) -> None:
        if isinstance(self.cycle, InferCycle | RepeatCycle):
            self.cycle.leave()
        else:
            super()._abandon()

    def _repeats(self, known: KnownRequest, data: bytes) -> bool:
        """Return whether `data` repeats a known request on an idle connection, and answer it."""
        places: Sequence[slice] = ()
        if known.frame is not None:
            cut = known.frame.cut(data)
            if cut is None:
                return False
            size, places = cut
        elif len(data) != known.size or not data.startswith(known.prefix):
            return False
        else:
            size = known.body_size
        if (
            self._in_head
            or self._in_body
            or self._broken
            or self._leaving
            or self._head_timer is not None
            or self.answering
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return False
        refusals = self.desk.refusals
        if refusals.expected and refusals.turn_away(self, known, size):
            self._lessons = 0
            return True
        if not self.inference.take_in(size, known.authorization):
            return False
        self._lessons = 0
        self.cycle = self._started = RepeatCycle(self, known, data, size, places)
        return True

    def _learn(self, data: bytes) -> None:
        """Keep a template of the request if `data` is exactly one request."""
        self._lessons += 1
        asked, head = self.cycle.asked, self.cycle.head
        if not self.cycle.keep_alive or self.expect_100_continue or not data.startswith(b"POST "):
            return
        if asked is not None:
            self._known = self.memory.learn(data, fields_of(self.headers), asked)
        elif head is not None:  # it was refused, but others like it may have been answered
            self._known = self.memory.find(data, fields_of(self.headers), head)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Begin the next pipelined request; uvicorn calls this at the end of an answer."""
        if isinstance(cycle, InferCycle):
            self._started = cycle
            self.loop.call_soon(self._begin_waiting)  # not at once: rejections would nest
        else:
            super()._start_asgi_task(cycle, app)

    def _begin_waiting(self) -> None:
        """Begin the request whose turn it is, unless the client takes no answers now."""
        cycle = self._started
        if not isinstance(cycle, InferCycle) or not cycle.waits or cycle.response_complete:
            return
        if self.flow.write_paused or self.transport.is_closing():
            return
        self._begin(cycle)
        if cycle.more_body:
            cycle.watch()
        else:
            cycle.ask()

    def _begin(self, cycle: InferCycle) -> None:
        if cycle.route.inference is not self.inference:
            self.inference, self.desk, self.memory = cycle.route
            self._known = None
        cycle.begin()

    def _route(self) -> Route | None:
        """Return the model whose infer path a POST names; None for the application's requests."""
        if self.parser.get_method() != b"POST" or self.parser.should_upgrade():
            return None
        return self.routes.get(self.url) or self.routes.get(_plain(self.url))


def _plain(url: bytes) -> bytes:
    """Return a request target's path, without escapes and slashes at its end."""
    try:
        path = httptools.parse_url(url).path or b""
        return unquote(path.decode("ascii")).rstrip("/").encode()
    except (httptools.HttpParserInvalidURLError, UnicodeError):
        return b""  # uvicorn's own code rejects it


def infer_protocol(*inferences: InferHandler) -> type[InferProtocol]:
    """Return the protocol class of a server of one model, or of several."""
    routes = [Route(each, RepeatDesk(each), KnownRequests(each)) for each in inferences]
    attributes = {
        **routes[0]._asdict(),
        "routes": {url: route for route in routes for url in route.inference.targets},
        "default_headers": DefaultHeaders(),
    }
    return type("ModelProtocol", (InferProtocol,), attributes)
