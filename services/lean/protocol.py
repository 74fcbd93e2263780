"""The path of an infer request: from uvicorn's parser to the batcher and back.

`LeanProtocol` answers each POST to the infer path of a model that is served here, in any
spelling, pipelined or not. Everything else goes to the ASGI application in uvicorn's own way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

import httptools

from services.http.fields import fields_of
from services.http.responses import Headers, Response, render_headers, to_wire
from services.inference import Inference
from services.lean.cycle import LeanCycle
from services.lean.desk import RepeatDesk
from services.lean.guard import GuardedProtocol
from services.lean.known import Known, Memory
from services.lean.repeat import RepeatCycle

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

    inference: Inference
    desk: RepeatDesk
    memory: Memory


class LeanProtocol(GuardedProtocol):
    """One connection; see `lean_protocol`.

    `inference`, `desk` and `memory` belong to the model of the last request, or to the first
    model before any request.
    """

    routes: ClassVar[Mapping[bytes, Route]]
    inference: Inference
    desk: RepeatDesk
    memory: Memory
    cycle: Any
    _started: Any = None
    pipeline: deque[tuple[Any, Any]]
    # The template that the next request may repeat, and the number of searches without a match.
    _known: Known | None = None
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
        cycle = LeanCycle(
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
        if type(self.cycle) is LeanCycle:
            self._progress = True
            self.cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if type(self.cycle) is LeanCycle:
            self.cycle.ask()

    def data_received(self, data: bytes) -> None:
        known = self._known
        if known is not None and self._repeats(known, data):
            return
        learns = self._lessons < _MOST_LESSONS and not (
            self._in_head or self._in_body or self.answering
        )
        super().data_received(data)
        if type(self.cycle) is not LeanCycle:
            return
        if self._in_body:
            self.cycle.watch()
        elif learns and not self._in_head:
            self._learn(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self._started, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, LeanCycle | RepeatCycle):
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
        if isinstance(self.cycle, LeanCycle | RepeatCycle):
            self.cycle.leave()
        else:
            super()._abandon()

    def _repeats(self, known: Known, data: bytes) -> bool:
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
        if isinstance(cycle, LeanCycle):
            self._started = cycle
            self.loop.call_soon(self._begin_waiting)  # not at once: rejections would nest
        else:
            super()._start_asgi_task(cycle, app)

    def _begin_waiting(self) -> None:
        """Begin the request whose turn it is, unless the client takes no answers now."""
        cycle = self._started
        if not isinstance(cycle, LeanCycle) or not cycle.waits or cycle.response_complete:
            return
        if self.flow.write_paused or self.transport.is_closing():
            return
        self._begin(cycle)
        if cycle.more_body:
            cycle.watch()
        else:
            cycle.ask()

    def _begin(self, cycle: LeanCycle) -> None:
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


def lean_protocol(*inferences: Inference) -> type[LeanProtocol]:
    """Return the protocol class of a server of one model, or of several."""
    routes = [Route(each, RepeatDesk(each), Memory(each)) for each in inferences]
    attributes = {
        **routes[0]._asdict(),
        "routes": {url: route for route in routes for url in route.inference.targets},
        "default_headers": DefaultHeaders(),
    }
    return type("ModelProtocol", (LeanProtocol,), attributes)
