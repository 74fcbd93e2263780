"""Infer requests over HTTP, from headers and body to the response.

The HTTP protocol uses this for whole answers and the ASGI application for streamed ones, so that
both have the same limits, errors, headers and metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

import httptools

from mlctl.bundle.tensors import Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Hold, QueueFullError
from mlctl.services.online.batching.executor import Answer, Cancellable
from mlctl.services.online.batching.model_executor import forward
from mlctl.services.online.batching.scheduler import deadline_exceeded
from mlctl.services.online.batching.streaming import AnswerStream
from mlctl.services.online.http.calls import CallHandler
from mlctl.services.online.http.responses import Response, error_response, to_wire
from mlctl.services.online.http.unparsed import read_unparsed
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.observability.calls import HTTP, OK, RequestRecord
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.compression import (
    IDENTITY,
    compress_response,
    content_coding,
    inflate_on_thread,
)
from mlctl.services.protocol.priority import Priority, parse_priority
from mlctl.services.protocol.wire import InferRequest

_QUEUE_FULL = ErrorCode.QUEUE_FULL.value
_MEDIA_TYPES = frozenset({b"", b"application/json", b"application/octet-stream"})
# Larger JSON is decoded on another thread: it takes a millisecond of the event loop. A compressed
# body may become large.
_HEAVY_JSON = 64 << 10
# Error codes of bytes that never became a request, by the HTTP status of the answer.
_PROTOCOL_CODES = {
    400: ErrorCode.INVALID_INPUT,
    408: ErrorCode.DEADLINE_EXCEEDED,
    431: ErrorCode.PAYLOAD_TOO_LARGE,
    501: ErrorCode.INVALID_INPUT,
    503: ErrorCode.QUEUE_FULL,
}


class PendingRequest(Hold):
    """An infer request from its headers to its answer, as `ModelExecutor.enqueue` takes one.

    The headers give `json_length`, the size of the body's JSON part in bytes, and `priority`, which
    overrides the body's (None if they do not), the body's content coding, and `accept`, the header
    Accept-Encoding. An observer sees the request from `started` on, the time of `perf_counter` at
    which its `headers` arrived, or not at all if that is 0; its body has `bytes_in` bytes.
    `request` is set when the body was decoded, which took `parse_seconds`. `client` is the name of
    the token. The request is its own share of the memory budget.

    Attributes that most requests leave as they are belong to the class: a request sets few.
    """

    request: InferRequest
    request_id = b""
    client = ""
    headers: Mapping[bytes, bytes] = MappingProxyType({})
    started = 0.0
    bytes_in: int | None = None
    json_length: int | None = None
    coding = IDENTITY
    accept = b""
    priority: Priority | None = None
    parse_seconds = 0.0

    def set_result(self, answer: Answer, /) -> None:
        """Send the answer."""
        raise NotImplementedError

    def set_exception(self, error: BaseException, /) -> None:
        """Send the error."""
        raise NotImplementedError

    def render(
        self,
        timing: bytes,
        body: bytes,
        header_length: int | None,
        extra: Sequence[tuple[bytes, bytes]],
    ) -> Any:
        """Return a successful response in the form that the transport sends.

        `timing` is the value of Server-Timing, `header_length` the length of the JSON that binary
        data follows, if any does; `extra` are further headers.
        """
        raise NotImplementedError


class InferExchange(PendingRequest):
    """One infer request and its response, the same over every transport.

    A transport calls `begin` when the headers have arrived, `take` for each piece of the body and
    `submit` at its end, `watch` while it waits for the rest, and `disconnect`. Its subclass makes
    and sends the response. `expects` is whether the client waits for 100 Continue before it sends
    the body.
    """

    handler: InferHandler
    response_complete = False
    expects = False
    more_body = True
    _body: bytes | bytearray = b""
    _submitted = False
    _queued: Cancellable | None = None
    _timer: asyncio.TimerHandle | None = None
    _deadline: float

    def proceed(self) -> None:
        """Send 100 Continue."""
        raise NotImplementedError

    def send(self, response: Any) -> None:
        """Send what `render` returned."""
        raise NotImplementedError

    def send_error(self, response: Response) -> None:
        """Send the response to a failed request."""
        raise NotImplementedError

    def begin(self) -> None:
        """Check the headers; all earlier requests of the connection are answered."""
        try:
            self.handler.begin(self, self.headers)
        except MlctlError as error:
            self._reject(error)
            return
        if self.expects and self.more_body:
            self.proceed()

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.response_complete or not self.more_body:
            return  # a body after the body is that of a pipelined upgrade
        size = self.size + len(piece)  # it is charged for what has arrived
        try:
            if size > self.handler.max_body_bytes:
                self.handler.check_size(size)
            self.grow(size)
        except MlctlError as error:
            self._reject(error)
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
        if self.response_complete:
            return
        if self._timer is None and self.more_body:
            loop = asyncio.get_running_loop()
            self._deadline = loop.time() + self.handler.seconds
            self._timer = loop.call_at(self._deadline, self._reject, deadline_exceeded())

    def submit(self) -> None:
        """Queue the request: the body is complete."""
        self.more_body = False
        if self._timer is not None:
            self._timer.cancel()
        if self.response_complete or self._submitted:
            return
        self._submitted = True
        body, self._body = self._body, b""
        try:
            # Without a timer the whole request arrived in one read, or waited until now.
            seconds = self.handler.seconds
            if self._timer is not None:
                seconds = self._deadline - asyncio.get_running_loop().time()
            self._queued = self.handler.submit(self, bytes(body), seconds)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self._reject(error)

    def disconnect(self) -> None:
        """Withdraw the request: its client disconnected."""
        if self.response_complete:
            return
        queued = self._queued
        self._complete()
        if queued is not None:
            queued.cancel()
        self.handler.disconnected(self.client, self.handler.record_of(self))

    def set_result(self, answer: Answer, /) -> None:
        if self.response_complete:
            return
        try:
            response = self.handler.respond(self, answer)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self._reject(error)
            return
        self._complete()
        self.send(response)

    def set_exception(self, error: BaseException, /) -> None:
        self._reject(error)

    def _reject(self, error: BaseException) -> None:
        if self.response_complete:
            return
        record = self.handler.record_of(self)
        response = self.handler.reject(error, self.request_id, self.client, record)
        self._complete()
        self.send_error(response)

    def _complete(self) -> None:
        self.response_complete = True
        if self._timer is not None:
            self._timer.cancel()
        self._body = b""
        self._queued = None  # it refers to this object, and a cycle would wait for the collector
        self.release()


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A decoded request, and the parts of its streamed answer."""

    request: InferRequest
    parts: AnswerStream


class InferHandler(CallHandler):
    """Answers the infer requests of one model."""

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served, HTTP)
        path = f"/v2/models/{quote(served.name, safe='')}"
        paths = (f"{path}/infer", f"{path}/versions/{served.digest}/infer")
        # The request targets of this model's infer endpoint, as clients spell them.
        self.targets = frozenset(path.encode() for path in paths)
        self._request_lines = tuple(b"POST %b HTTP/1.1\r\n" % target for target in self.targets)
        self._codec = V2Codec(served.name, served.digest, served.signature)
        # Two threads for each transport, so that one large body does not delay all others.
        self._decoder = ThreadPoolExecutor(2, "mlctl-decode")
        self._full: tuple[QueueFullError, Response] | None = None
        self._full_wire: tuple[QueueFullError, bytes, bytes, bytes] | None = None
        # Whether a request was rejected since one found room in the queue.
        self.rejecting = False
        self.inflight = served.inflight
        # The maximum time of a request from its headers to its answer, in seconds.
        self.seconds = served.settings.deadline_ms / 1000
        self.max_body_bytes = served.max_body_bytes
        # A declared length of fewer digits is below that.
        self._digits = len(str(self.max_body_bytes))
        self._times = (0.0, 0.0, 0.0)
        self._times_text = timing(0.0, 0.0, 0.0)

    @property
    def name(self) -> str:
        """The model's."""
        return self._served.name

    @property
    def signature(self) -> Signature:
        """The model's."""
        return self._served.signature

    @property
    def observing(self) -> bool:
        """Whether an observer takes records of requests now."""
        observer = self._served.observer
        return observer is not None and observer.active

    def record_of(self, pending: PendingRequest) -> RequestRecord | None:
        """Return the observability record of a request that has no answer, or None."""
        record = self.observe(pending.headers, pending.request_id) if pending.started else None
        if record is not None:
            record.started, record.bytes_in = pending.started, pending.bytes_in
            record.client = pending.client
        return record

    def begin(self, pending: PendingRequest, headers: Mapping[bytes, bytes]) -> None:
        """Give the request its id and its client, and check its headers.

        Raises UNAUTHENTICATED if the server requires a token and the headers have none,
        RATE_LIMIT_EXCEEDED, and what `read_headers` raises.
        """
        pending.request_id = self._ids.of(headers.get(b"x-request-id"))
        observer, access = self._served.observer, self._served.access
        if observer is not None and observer.active:
            pending.started = perf_counter()
        if access.required:
            pending.client = access.client_of(headers.get(b"authorization"))
            access.charge(pending.client)
        self.read_headers(pending, headers)

    def read_headers(self, pending: PendingRequest, headers: Mapping[bytes, bytes]) -> None:
        """Check the headers before the body is read, and set the attributes that they give.

        Raises UNSUPPORTED_MEDIA_TYPE, INVALID_INPUT, PAYLOAD_TOO_LARGE.
        """
        if b"content-type" in headers and headers[b"content-type"] not in _MEDIA_TYPES:
            media_type = headers[b"content-type"].partition(b";")[0].strip().lower()
            if media_type not in _MEDIA_TYPES:
                raise MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the content type is not served")
        if b"content-encoding" in headers:
            pending.coding = content_coding(headers[b"content-encoding"].decode("latin-1"))
        if b"content-length" in headers:
            length = headers[b"content-length"]
            if len(length) >= self._digits or not length.isdigit():
                self.check_size(_number(b"content-length", length))
        if b"inference-header-content-length" in headers:
            length = headers[b"inference-header-content-length"]
            pending.json_length = _number(b"inference-header-content-length", length)
        if b"mlctl-priority" in headers:
            pending.priority = parse_priority(headers[b"mlctl-priority"].decode("latin-1"))
        if b"accept-encoding" in headers:
            pending.accept = headers[b"accept-encoding"]

    def check_size(self, size: int) -> None:
        """Raise PAYLOAD_TOO_LARGE for a body of `size` bytes above the model's limit."""
        self._served.check_size(size)

    def submit(self, pending: PendingRequest, body: bytes, timeout: float) -> Cancellable:
        """Inflate and decode the body, and queue the request for at most `timeout` seconds.

        `pending` is charged for the body's bytes; what a compressed body inflates to is added.
        Returns what withdraws the request.
        """
        start = perf_counter()
        pending.bytes_in = pending.size
        if self.rejecting and pending.coding == IDENTITY and b"priority" not in body:
            full = self._served.quick_reject(pending.priority or Priority.NORMAL, len(body))
            if full is not None:
                raise full
        if (len(body) > _HEAVY_JSON or pending.coding != IDENTITY) and _is_heavy(pending, body):
            task = asyncio.get_running_loop().create_task(
                self._submit_apart(pending, body, timeout)
            )
            return forward(task, pending)
        request = pending.request = self._codec.decode(body, pending.json_length)
        pending.parse_seconds = perf_counter() - start
        if request.timeout is not None and request.timeout < timeout:
            timeout = request.timeout
        return self._served.handle(request, pending, timeout, pending.priority or request.priority)

    async def submit_stream(self, pending: PendingRequest, body: bytes) -> StreamedAnswer:
        """Decode the body and queue the request for a streamed answer, sent as JSON.

        `pending` is charged for the body's bytes.
        """
        request = await self._decode_apart(pending, body)
        if binary := [name for name, wanted in request.outputs.items() if wanted]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"output {binary[0]!r} is requested as binary data, which no event carries",
                "Request it as JSON, or use ModelStreamInfer of the gRPC API.",
            )
        priority = pending.priority or request.priority
        parts = self._served.stream(request.inputs, request.timeout, priority)
        return StreamedAnswer(request, parts)

    def encode_part(self, streamed: StreamedAnswer, part: Answer) -> bytes:
        """Encode one part of a streamed answer as one line of JSON."""
        return self._codec.encode(streamed.request, part.outputs)[0]

    def encode_end(self, streamed: StreamedAnswer, client: str) -> bytes:
        """Encode the response that ends a streamed answer, and count the request of `client`."""
        self._served.count(HTTP, None, client)
        return self._codec.encode_final(streamed.request)

    def respond(self, pending: PendingRequest, answer: Answer) -> Any:
        """Make and count the whole response; raise if it cannot be encoded as requested.

        Returns what `pending` renders.
        """
        start = perf_counter()
        request = pending.request
        body, header_length = self._codec.encode(request, answer.outputs, answer.parameters)
        packing: Sequence[tuple[bytes, bytes]] = ()
        if pending.accept:
            body, packing = compress_response(body, pending.accept)
        queue, infer = answer.queue_seconds, answer.infer_seconds
        times = queue, infer, answer.lookup_seconds
        if times != self._times:  # most requests of a batch have the same
            self._times = times
            self._times_text = timing(*times)
        response = pending.render(self._times_text, body, header_length, packing)
        ended = perf_counter()
        served, serialize = self._served, ended - start
        client = pending.client
        served.answered(HTTP, pending.parse_seconds, queue, infer, serialize, client)
        observer, started, bytes_in = served.observer, pending.started, pending.bytes_in
        if started and observer is not None and bytes_in is not None:
            log, headers = observer.log_alone, pending.headers
            if log is not None:
                shared = HTTP, OK, None, queue, infer, answer.batch_rows
                ids = pending.request_id, headers.get(b"traceparent"), client
                log.answered((shared, answer.rows, *ids, started, ended, bytes_in, len(body)))
            else:
                observer.finished(
                    HTTP, pending.request_id, headers, started, bytes_in, request.inputs, answer,
                    pending.parse_seconds, serialize, len(body), client,
                )  # fmt: skip
        return response

    def reject(
        self,
        error: BaseException,
        request_id: bytes,
        client: str = "",
        record: RequestRecord | None = None,
        status: int | None = None,
    ) -> Response:
        """See `CallHandler.reject`. In overload many requests get the same error."""
        if not isinstance(error, QueueFullError):
            return super().reject(error, request_id, client, record, status)
        self._served.count(HTTP, error, client)
        self.report(record, error, status)
        self.rejecting = True
        if self._full is None or self._full[0] is not error:
            self._full = error, error_response(error)
        status, headers, body = self._full[1]
        return Response(status, [*headers, (b"x-request-id", request_id)], body)

    def quick_reject(
        self, size: int, headers: Mapping[bytes, bytes]
    ) -> tuple[QueueFullError, bytes] | None:
        """Count and return the error and the id of a request that the queue certainly rejects.

        The request has a body of `size` bytes and names no priority. None if it has to be parsed.
        """
        served = self._served
        full = served.quick_reject(Priority.NORMAL, size)
        if full is None:
            self.rejecting = False
            return None
        request_id = self._ids.of(headers.get(b"x-request-id"))
        served.counted(HTTP, _QUEUE_FULL, "")
        if self.observing:
            self.report(self.observe(headers, request_id), full)
        return full, request_id

    def reject_unparsed(self, request: bytes, headers: bytes) -> bytes | None:
        """Return the response to a whole request that the queue certainly rejects, else None.

        Only the request's size, target, id and trace are read: in overload a rejection must cost
        less than an answer. None for a request that is unusual in any way, which the parser
        then reads. `headers` are the server's own header lines.
        """
        if self._served.access.required:
            return None
        found = read_unparsed(request, self._request_lines)
        if found is None:
            return None
        rejected = self.quick_reject(*found)
        if rejected is None:
            return None
        full, request_id = rejected
        cached = self._full_wire
        if cached is None or cached[0] is not full or cached[1] is not headers:
            mark = b"\0"
            response = error_response(full, [(b"x-request-id", mark)])
            start, _, end = to_wire(response, headers, close=False).partition(mark)
            cached = self._full_wire = full, headers, start, end
        return cached[2] + request_id + cached[3]

    def connection_rejected(self, status: int) -> None:
        """Count a connection that the protocol rejected with `status` before any request."""
        error = MlctlError(_PROTOCOL_CODES[status], "the connection was rejected")
        self._served.count(HTTP, error)
        self.report(self.observe({}, self.request_id({})), error, status)

    async def _submit_apart(self, pending: PendingRequest, body: bytes, seconds: float) -> Answer:
        start = perf_counter()
        try:
            async with asyncio.timeout(seconds):
                request = await self._decode_apart(pending, body)
        except TimeoutError:
            raise deadline_exceeded() from None
        pending.request = request
        pending.parse_seconds = perf_counter() - start
        left = seconds - pending.parse_seconds
        limit = left if request.timeout is None else min(left, request.timeout)
        return await self._served.ask(request, limit, pending.priority or request.priority)

    async def _decode_apart(self, pending: PendingRequest, body: bytes) -> InferRequest:
        """Decode a body of any size and coding, on another thread if that takes long."""
        if pending.coding != IDENTITY:
            arrived, limit = len(body), self.max_body_bytes
            body = await inflate_on_thread(
                body, pending.coding, limit, lambda size: pending.grow(arrived + size),
                self._decoder,
            )  # fmt: skip
            pending.coding = IDENTITY
        if not _is_heavy(pending, body):
            return self._codec.decode(body, pending.json_length)
        loop = asyncio.get_running_loop()
        decode = self._codec.decode
        return await loop.run_in_executor(self._decoder, decode, body, pending.json_length)


def _is_heavy(pending: PendingRequest, body: bytes) -> bool:
    """Return whether decoding the body may block the event loop for milliseconds."""
    json = len(body) if pending.json_length is None else pending.json_length
    return json > _HEAVY_JSON or pending.coding != IDENTITY


def timing(queue: float, infer: float, features: float) -> bytes:
    """Return the Server-Timing header of an answer; the times are in seconds.

    `features`, a part of `infer`, is left out where nothing was looked up.
    """
    text = b"queue;dur=%.3f, infer;dur=%.3f" % (queue * 1e3, infer * 1e3)
    return b"%b, features;dur=%.3f" % (text, features * 1e3) if features else text


def plain_target(target: bytes) -> bytes:
    """Return a request target's path, without escapes and slashes at its end; empty if invalid."""
    try:
        path = httptools.parse_url(target).path or b""
        return unquote(path.decode("ascii")).rstrip("/").encode()
    except (httptools.HttpParserInvalidURLError, UnicodeError):
        return b""


def _number(name: bytes, value: bytes) -> int:
    value = value.strip(b" \t")  # the parser keeps what follows a number
    if not value.isdigit() or len(value) > 18:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"header {name.decode()} is not a number of bytes"
        )
    return int(value)
