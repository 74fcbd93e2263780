"""The short way of an infer request: from uvicorn's parser to the batcher and back.

`LeanProtocol` answers a POST to exactly the model's infer path that comes while no other
request of its connection is open. Everything else (other paths and spellings, pipelined
requests, Expect, upgrades) goes the way of uvicorn's own protocol to the ASGI application,
which asks the same `Inference`.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from bundle.errors import MlctlError
from services.batcher import deadline_exceeded
from services.batching import Answer
from services.budget import Hold
from services.inference import Asked, Head, Inference
from services.lean.guard import GuardedProtocol
from services.observe.calls import Seen
from services.responses import Headers, Response, render_headers, to_wire


class _NoEvent:
    """Stands where uvicorn wakes an ASGI application: nobody waits here."""

    def set(self) -> None:
        """Nothing to wake."""


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


class LeanCycle:
    """One request and its answer; has what uvicorn's protocol looks for in a cycle."""

    __slots__ = (
        "_asked", "_body", "_end", "_head", "_hold", "_protocol", "_request_id", "_seen",
        "_timer", "disconnected", "keep_alive", "more_body", "response_complete",
    )  # fmt: skip
    message_event = _NoEvent()
    response_started = False

    def __init__(self, protocol: LeanProtocol, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = False
        self.more_body = True
        self.response_complete = False
        self._protocol = protocol
        self._end = protocol.loop.time() + protocol.inference.seconds
        self._request_id = b""
        self._seen: Seen | None = None
        self._head: Head | None = None
        self._hold: Hold | None = None
        self._body: bytes | bytearray = b""
        self._asked: Asked | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, headers: dict[bytes, bytes]) -> None:
        """The headers are there."""
        inference = self._protocol.inference
        self._request_id = inference.request_id(headers)
        self._seen = inference.watch(headers, self._request_id, self._protocol.client)
        try:
            inference.admit(headers)
            head = inference.open(headers, self._request_id, self._seen)
            self._hold = inference.hold(headers)
            self._head = head
        except MlctlError as error:
            self._refuse(error)

    def feed(self, piece: bytes) -> None:
        """A piece of the body is there."""
        if self.response_complete or not self.more_body:
            return  # a body after the body is that of a pipelined upgrade
        try:
            size = len(self._body) + len(piece)
            self._protocol.inference.check_size(size)
            if self._hold is not None:
                self._hold.grow(size)
        except MlctlError as error:
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
        """More of the body is to come: it has until the request's deadline."""
        if self._timer is None and self.more_body and not self.response_complete:
            loop = self._protocol.loop
            self._timer = loop.call_at(self._end, self._refuse, deadline_exceeded())

    def ask(self) -> None:
        """The body is whole."""
        self.more_body = False
        self._stop_timer()
        if self.response_complete or self._head is None or self._asked is not None:
            return
        left = self._end - self._protocol.loop.time()
        try:
            asked = self._protocol.inference.ask(self._head, bytes(self._body), left)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self._refuse(error)
            return
        self._body = b""
        self._asked = asked
        asked.future.add_done_callback(self._on_answer)

    def leave(self) -> None:
        """The client is gone: withdraw what was asked."""
        if self.response_complete:
            return
        self.disconnected = True
        if self._asked is not None:
            self._asked.future.cancel()
        self._protocol.inference.gone(self._seen)
        self.response_complete = True
        self._let_go()

    def _on_answer(self, future: asyncio.Future[Answer]) -> None:
        if self.response_complete or self._asked is None:
            if not future.cancelled():
                future.exception()  # nobody else will look at it
            return
        try:
            response = self._protocol.inference.answer(self._asked, future.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged and answered
            self._refuse(error)
        else:
            self._send(response)

    def _refuse(self, error: BaseException) -> None:
        self._send(self._protocol.inference.refuse(error, self._request_id, self._seen))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _let_go(self) -> None:
        self._stop_timer()
        self._body = b""
        if self._hold is not None:
            self._hold.release()

    def _send(self, response: Response) -> None:
        self.response_complete = True
        self._let_go()
        self._protocol.send(response, close=not self.keep_alive)


class LeanProtocol(GuardedProtocol):
    """One connection; see `lean_protocol`."""

    inference: ClassVar[Inference]
    targets: ClassVar[frozenset[bytes]]
    cycle: Any
    # The last one here: `cycle` is a pipelined one's while this may be open still.
    _lean: LeanCycle | None = None
    default_headers: ClassVar[DefaultHeaders]

    def on_message_begin(self) -> None:
        # No scope yet: the requests that are answered here need none.
        self._in_head = self._progress = True
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        if not self._is_lean():
            url, headers, expect = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expect
            self.headers += headers  # the scope has this very list
            super().on_headers_complete()
            return
        self._end_head()
        parser = self.parser
        lasting = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        keep_alive = lasting and not self._leaving
        self.cycle = self._lean = LeanCycle(self, keep_alive=keep_alive)
        self.cycle.begin(dict(self.headers))

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
        super().data_received(data)
        if self._in_body and type(self.cycle) is LeanCycle:
            self.cycle.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lean is not None:
            self._lean.leave()
        super().connection_lost(exc)

    def send(self, response: Response, *, close: bool) -> None:
        """Write the whole answer to the open request, and go on or close."""
        if self.transport.is_closing():
            return
        headers = self.default_headers.render(self.server_state.default_headers)
        self.transport.write(to_wire(response, headers, close=close))
        if close:
            self.transport.close()
        self.on_response_complete()

    def note_refusal(self, status: int) -> None:
        """Count it."""
        self.inference.refused(status, self.client)

    def _abandon(self) -> None:
        if type(self.cycle) is LeanCycle:
            self.cycle.leave()
        else:
            super()._abandon()

    def _is_lean(self) -> bool:
        return (
            self.url in self.targets
            and not self.answering
            and not self.expect_100_continue
            and not self.flow.write_paused
            and not self.root_path
            and self.limit_concurrency is None
            and self.parser.get_method() == b"POST"
            and not self.parser.should_upgrade()
        )


def lean_protocol(inference: Inference) -> type[LeanProtocol]:
    """The protocol class for the connections to one model's server."""
    attributes = {
        "inference": inference,
        "targets": inference.targets,
        "default_headers": DefaultHeaders(),
    }
    return type("ModelProtocol", (LeanProtocol,), attributes)
