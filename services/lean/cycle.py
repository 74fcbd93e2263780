"""One infer request and its answer on its HTTP connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bundle.errors import MlctlError
from services.batching.batcher import deadline_exceeded
from services.batching.shell import Answer
from services.http.responses import Response
from services.inference import Asked, Head
from services.lean.repeat import NoEvent
from services.observe.calls import Seen

if TYPE_CHECKING:
    from services.lean.protocol import LeanProtocol, Route

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class LeanCycle:
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
        protocol: LeanProtocol,
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
        self._seen: Seen | None = None
        self.head: Head | None = None
        self._hold = route.inference.hold()
        self._body: bytes | bytearray = b""
        self._error: MlctlError | None = None
        self.asked: Asked | None = None
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
