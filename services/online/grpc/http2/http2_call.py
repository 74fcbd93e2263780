"""V2 infer requests over HTTP/2: one stream each, answered as over HTTP/1.1.

A proxy has many of them open on one connection, so that one read and one write serve several.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate

from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.admission import Hold, Inflight, QueueFullError
from mlctl.services.online.grpc.http2.call import CALL_BYTES, CallConnection
from mlctl.services.online.grpc.http2.head import PER_CALL, CallHead
from mlctl.services.online.grpc.http2.hpack import literal, string
from mlctl.services.online.http.app import no_such_path, require_infer_path
from mlctl.services.online.http.inference import InferExchange, InferHandler, plain_target
from mlctl.services.online.http.responses import Response, error_response
from mlctl.services.online.http.unparsed import CHANGES_MEANING
from mlctl.services.online.models.repository import Serving

_STATUS, _LENGTH, _JSON_LENGTH = b":status", b"content-length", b"inference-header-content-length"
_CONTINUE = literal(_STATUS, b"100")
_TIMING_NAME, _ID_NAME, _LENGTH_NAME, _JSON_LENGTH_NAME = (
    b"\0" + string(name) for name in (b"server-timing", b"x-request-id", _LENGTH, _JSON_LENGTH)
)
_ANSWER = b"%b%c%b" + _ID_NAME + b"%b" + _LENGTH_NAME + b"%c%b"
_REQUEST = PER_CALL | {_LENGTH, _JSON_LENGTH, b"authorization"}
_UNOBSERVED = _REQUEST - {b"traceparent", b"tracestate"}


class Http2Call(InferExchange):
    """One infer request and its stream, which the client has ended."""

    ended = True
    _room: Hold | None = None

    def __init__(
        self,
        streams: InferStreams,
        handler: InferHandler,
        link: CallConnection,
        stream: int,
        head: CallHead,
    ) -> None:
        self.inflight = handler.inflight
        self.handler = handler
        self.headers = head.headers(_REQUEST if handler.observing else _UNOBSERVED)
        self.stream = stream
        self._streams = streams
        self._link = link

    def charge(self, room: Inflight, size: int) -> None:
        """Charge `size` bytes beside the body's to `room` until the request is answered."""
        if self.response_complete:
            return
        hold = self._room = Hold(room)
        try:
            hold.grow(size)
        except MlctlError as error:
            self._reject(error)

    def end(self) -> None:
        """Queue the request: its body is complete."""
        self.submit()

    def leave(self) -> None:
        """Withdraw the request: its client disconnected or cancelled it."""
        self.disconnect()

    def stop(self, reason: MlctlError) -> None:
        """End the request with the error `reason`."""
        queued = self._queued
        self._reject(reason)
        if queued is not None:
            queued.cancel()

    def render(
        self,
        timing: bytes,
        body: bytes,
        header_length: int | None,
        extra: Sequence[tuple[bytes, bytes]],
    ) -> tuple[bytes, bytes]:
        start = self._streams.start(is_json=header_length is None)
        length = b"%d" % len(body)
        values = start, len(timing), timing, string(self.request_id), len(length), length
        block = _ANSWER % values
        if header_length is not None:
            block += _JSON_LENGTH_NAME + string(b"%d" % header_length)
        if extra:
            block += b"".join([literal(name, value) for name, value in extra])
        return block, body

    def send(self, response: tuple[bytes, bytes]) -> None:
        link, seconds = self._link, self.handler.seconds
        link.outbox.respond(
            self.stream, *response, reset_unfinished=not self.ended, seconds=seconds
        )
        link.over(self.stream)

    def send_error(self, response: Response) -> None:
        self.send((self._streams.block_of(response), response.body))

    def _complete(self) -> None:
        super()._complete()
        if self._room is not None:
            self._room.release()


class OpenInferStream(Http2Call):
    """One whose body still arrives."""

    ended = False

    def wait(self, room: Inflight, size: int) -> None:
        """Wait for the body, with headers of `size` bytes."""
        self.expects = self.headers.get(b"expect", b"").lower() == b"100-continue"
        self.begin()
        self.charge(room, CALL_BYTES + size)
        self.watch()

    def feed(self, data: bytes, size: int, *, ended: bool) -> None:
        """Take a part of the body, which uses `size` bytes of the window."""
        self.ended = ended
        self.take(data)
        if not ended and not self.response_complete:
            self._link.consumed(self.stream, size)

    def end(self) -> None:
        self.ended = True
        super().end()

    def proceed(self) -> None:
        self._link.outbox.start_block(self.stream, _CONTINUE)


class InferStreams:
    """Opens the infer requests of a server. `room` is charged for large heads."""

    def __init__(self, serving: Serving, room: Inflight) -> None:
        handlers = [InferHandler(each) for each in serving.models]
        self._handlers = {target.decode(): each for each in handlers for target in each.targets}
        self._by_name = {each.name: each for each in handlers}
        self._default = handlers[0]
        self._serving = serving
        self._room = room
        self._access = serving.access
        self._full: tuple[QueueFullError, bytes, bytes] | None = None
        self._second = 0
        self._starts = b"", b""

    def find(self, head: CallHead) -> InferHandler | None:
        """Return the handler of a POST to the infer path of a model; None for other requests."""
        if head.is_grpc or head.method != b"POST":
            return None
        handler = self._handlers.get(head.path)
        if handler is None:
            target = plain_target(head.path.encode("latin-1"))
            handler = self._handlers.get(target.decode())
        return handler

    def reject(self, link: CallConnection, stream: int, head: CallHead, *, ended: bool) -> bool:
        """Reject a POST to an infer path that `find` has no handler for; False for other paths."""
        parts = plain_target(head.path.encode("latin-1")).decode().strip("/").split("/")
        if head.is_grpc or head.method != b"POST":
            return False
        if parts[:2] != ["v2", "models"] or parts[-1] != "infer":
            return False
        handler = self._by_name.get(parts[2], self._default)
        headers = head.headers(_REQUEST)
        request_id = handler.request_id(headers)
        record = handler.observe(headers, request_id)
        error, client = no_such_path(parts), ""
        try:
            client = self._access.client_of(head.authorization)
            require_infer_path(self._serving, parts)
        except MlctlError as found:
            error = found
        if record is not None:
            record.client = client
        response = handler.reject(error, request_id, client, record)
        block, seconds = self.block_of(response), handler.seconds
        link.outbox.respond(
            stream, block, response.body, reset_unfinished=not ended, seconds=seconds
        )
        link.over(stream)
        return True

    def open_whole(
        self, handler: InferHandler, link: CallConnection, stream: int, head: CallHead, body: bytes
    ) -> Http2Call | None:
        """Begin a request that arrived whole. Returns None if it is answered already."""
        if handler.rejecting and self._reject_unparsed(handler, link, stream, head, body):
            return None
        call = Http2Call(self, handler, link, stream, head)
        call.begin()
        if head.size > CALL_BYTES:
            call.charge(self._room, head.size)
        call.take(body)
        call.end()
        return None if call.response_complete else call

    def open(
        self, handler: InferHandler, link: CallConnection, stream: int, head: CallHead
    ) -> OpenInferStream | None:
        """Begin a request whose body follows. Returns None if it is answered already."""
        call = OpenInferStream(self, handler, link, stream, head)
        call.wait(self._room, head.size)
        return None if call.response_complete else call

    def start(self, *, is_json: bool) -> bytes:
        """Return the start of the block of an answer, up to the length of Server-Timing."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            status, date = literal(_STATUS, b"200"), _date()
            json, binary = (
                status + date + literal(b"content-type", kind) + _TIMING_NAME
                for kind in (b"application/json", b"application/octet-stream")
            )
            self._starts = binary, json
        return self._starts[is_json]

    def block_of(self, response: Response) -> bytes:
        """Return the block of a response."""
        status = literal(_STATUS, b"%d" % response.status)
        fields = [literal(name, value) for name, value in response.headers]
        return b"".join((status, _date(), *fields))

    def _reject_unparsed(
        self, handler: InferHandler, link: CallConnection, stream: int, head: CallHead, body: bytes
    ) -> bool:
        """Reject a whole request that the queue certainly rejects; False if it has to be parsed.

        No object is made for it: in overload a rejection must cost less than an answer.
        """
        if self._access.required or b"priority" in body:
            return False
        if not CHANGES_MEANING.isdisjoint(head.named):
            return False
        rejected = handler.quick_reject(len(body), head.headers(PER_CALL))
        if rejected is None:
            return False
        full, request_id = rejected
        if self._full is None or self._full[0] is not full:
            response = error_response(full)
            self._full = full, self.block_of(response), response.body
        block = self._full[1] + _ID_NAME + string(request_id)
        link.outbox.respond(
            stream, block, self._full[2], reset_unfinished=False, seconds=handler.seconds
        )
        link.over(stream)
        return True


def _date() -> bytes:
    return literal(b"date", formatdate(usegmt=True).encode())
