"""Infer requests over HTTP, from headers and body to the response.

The HTTP protocol uses this for whole answers and the ASGI application for streamed ones, so that
both have the same limits, errors, headers and metrics.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple
from urllib.parse import quote

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Signature
from services.online.batching.admission import QueueFullError
from services.online.batching.budget import Hold
from services.online.batching.executor import Answer, Cancellable, forward
from services.online.batching.scheduler import deadline_exceeded
from services.online.http.responses import Response, error_response, success_to_wire
from services.online.models.served_model import ServedModel
from services.online.observability.calls import HTTP, RequestRecord, Stages
from services.online.observability.ids import RequestIds
from services.online.security.public import failed, is_public
from services.protocol.codec import V2Codec
from services.protocol.compression import (
    IDENTITY,
    compress_response,
    content_coding,
    inflate_on_thread,
)
from services.protocol.priority import Priority, parse_priority
from services.protocol.wire import InferRequest
from services.runtime.streaming import AnswerStream

_MEDIA_TYPES = frozenset({b"", b"application/json", b"application/octet-stream"})
# Larger JSON is decoded on another thread: it takes a millisecond of the event loop. A compressed
# body may become large.
_HEAVY_JSON = 64 << 10
# Error codes of bytes that never became a request, by the HTTP status of the answer.
_PROTOCOL_CODES = {
    400: ErrorCode.INVALID_INPUT,
    408: ErrorCode.DEADLINE_EXCEEDED,
    431: ErrorCode.PAYLOAD_TOO_LARGE,
    503: ErrorCode.QUEUE_FULL,
}
logger = logging.getLogger("mlctl.http")


class RequestHead(NamedTuple):
    """The headers of an infer request.

    `json_length` is the size of the body's JSON part in bytes, `priority` overrides the body's;
    both are None if not given. `coding` is the body's content coding, `accept` the header
    Accept-Encoding, `record` the observability record of the request, or None.

    A named tuple, because one is made for every request.
    """

    request_id: bytes
    json_length: int | None
    coding: str
    accept: bytes
    priority: Priority | None
    record: RequestRecord | None = None


class PendingRequest:
    """An infer request that waits for its answer, as `BatchExecutor.enqueue` takes one.

    `head` is set when its headers were accepted, `request` when it was decoded, which took
    `parse_seconds`. `hold` is its share of the memory budget.
    """

    __slots__ = ("head", "hold", "parse_seconds", "request")
    head: RequestHead
    request: InferRequest

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.parse_seconds = 0.0

    def done(self) -> bool:
        """Whether it was answered, failed or left."""
        raise NotImplementedError

    def set_result(self, answer: Answer, /) -> None:
        """Send the answer."""
        raise NotImplementedError

    def set_exception(self, error: BaseException, /) -> None:
        """Send the error."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A decoded request, and the parts of its streamed answer."""

    request: InferRequest
    parts: AnswerStream


class InferHandler:
    """Answers the infer requests of one model."""

    def __init__(self, host: ServedModel) -> None:
        self._host = host
        self._codec = V2Codec(host.name, host.digest, host.signature)
        # Two threads, so that one large body does not delay all others.
        self._decoder = ThreadPoolExecutor(2, "mlctl-decode")
        self._ids = RequestIds()
        self._row_values = _values_of_row(host.signature)
        self._full: tuple[QueueFullError, Response] | None = None
        self._times = (0.0, 0.0)
        self._times_text = timing(0.0, 0.0)

    @property
    def name(self) -> str:
        """The model's."""
        return self._host.name

    @property
    def signature(self) -> Signature:
        """The model's."""
        return self._host.signature

    @property
    def targets(self) -> frozenset[bytes]:
        """The request targets of this model's infer endpoint, as clients spell them."""
        path = f"/v2/models/{quote(self._host.name, safe='')}"
        version = f"{path}/versions/{self._host.digest}"
        return frozenset({f"{path}/infer".encode(), f"{version}/infer".encode()})

    @property
    def observed(self) -> bool:
        """Whether requests may have an observability record now."""
        observer = self._host.observer
        return observer is not None and observer.active

    @property
    def seconds(self) -> float:
        """The maximum time of a request from its headers to its answer, in seconds."""
        return self._host.settings.deadline_ms / 1000

    def request_id(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return the caller's X-Request-Id if it can be echoed, else a new id."""
        return self._ids.of(headers.get(b"x-request-id"))

    def observe(self, headers: Mapping[bytes, bytes], request_id: bytes) -> RequestRecord | None:
        """Return the observability record of this request, or None if it has none."""
        observer = self._host.observer
        if observer is None or not observer.active:
            return None
        traceparent, tracestate = headers.get(b"traceparent"), headers.get(b"tracestate")
        return observer.begin(HTTP, request_id, traceparent, tracestate)

    def admit(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise UNAUTHENTICATED if the server requires a token and the headers have none."""
        self._host.access.require(headers.get(b"authorization"))

    def open(
        self, headers: Mapping[bytes, bytes], request_id: bytes, record: RequestRecord | None = None
    ) -> RequestHead:
        """Check the headers before the body is read.

        Raises UNSUPPORTED_MEDIA_TYPE, INVALID_INPUT, PAYLOAD_TOO_LARGE.
        """
        media_type = headers.get(b"content-type", b"")
        if media_type not in _MEDIA_TYPES:
            media_type = media_type.partition(b";")[0].strip().lower()
            if media_type not in _MEDIA_TYPES:
                raise MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the content type is not served")
        coding = IDENTITY
        if b"content-encoding" in headers:
            coding = content_coding(headers[b"content-encoding"].decode("latin-1"))
        declared = _number(headers, b"content-length")
        if declared is not None:
            self.check_size(declared)
        json_length = _number(headers, b"inference-header-content-length")
        priority = None
        if b"mlctl-priority" in headers:
            priority = parse_priority(headers[b"mlctl-priority"].decode("latin-1"))
        accept = headers.get(b"accept-encoding", b"")
        return RequestHead(request_id, json_length, coding, accept, priority, record)

    def hold(self) -> Hold:
        """Return a request's share of the bytes in flight, still empty.

        The caller grows it as the body arrives and releases it when the request is over.
        """
        return Hold(self._host.inflight)

    def check_size(self, size: int) -> None:
        """Raise PAYLOAD_TOO_LARGE for a body of `size` bytes above the limit."""
        if size > self._host.settings.max_body_bytes:
            raise too_large(self._host.settings.max_body_bytes)

    def submit(self, pending: PendingRequest, body: bytes, timeout: float) -> Cancellable:
        """Inflate and decode the body, and queue the request for at most `timeout` seconds.

        `pending.hold` has the body's bytes; what a compressed body inflates to is added. Returns
        what withdraws the request.
        """
        start = perf_counter()
        head = pending.head
        if head.record is not None:
            head.record.bytes_in = len(body)
        full = self._host.quick_reject(head.priority or Priority.NORMAL)
        if full is not None and self._is_short(head, body):
            raise full
        if _is_heavy(head, body):
            task = asyncio.get_running_loop().create_task(
                self._submit_apart(pending, body, timeout)
            )
            return forward(task, pending)
        request = pending.request = self._codec.decode(body, head.json_length)
        pending.parse_seconds = perf_counter() - start
        limit = timeout if request.timeout is None else min(timeout, request.timeout)
        return self._host.handle(request, pending, limit, head.priority or request.priority)

    def _is_short(self, head: RequestHead, body: bytes) -> bool:
        """Whether a request has at most a batch's rows and the priority of its headers.

        This is known from the size of the body: each value takes at least a byte.
        """
        limits, row_values = self._host.limits, self._row_values
        if limits is None or head.coding != IDENTITY or b"priority" in body:
            return False
        return len(body) <= row_values * limits.max_rows

    async def submit_stream(self, head: RequestHead, body: bytes, hold: Hold) -> StreamedAnswer:
        """Decode the body and queue the request for a streamed answer, sent as JSON.

        `hold` has the body's bytes.
        """
        if head.record is not None:
            head.record.bytes_in = len(body)
        if _is_heavy(head, body):
            request = await self._decode_apart(head, body, hold)
        else:
            request = self._codec.decode(body, head.json_length)
        if binary := [name for name, wanted in request.outputs.items() if wanted]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"output {binary[0]!r} is requested as binary data, which no event carries",
                "Request it as JSON, or use ModelStreamInfer of the gRPC API.",
            )
        priority = head.priority or request.priority
        parts = self._host.stream(request.inputs, request.timeout, priority)
        return StreamedAnswer(request, parts)

    def encode_part(self, streamed: StreamedAnswer, part: Answer) -> bytes:
        """Encode one part of a streamed answer as one line of JSON."""
        return self._codec.encode(streamed.request, part.outputs).body

    def encode_end(self, streamed: StreamedAnswer) -> bytes:
        """Encode the response that ends a streamed answer, and count the request."""
        self._host.count(HTTP, None)
        return self._codec.encode_final(streamed.request)

    def respond(
        self, pending: PendingRequest, answer: Answer, headers: bytes, *, close: bool
    ) -> bytes:
        """Make and count the whole response; raise if it cannot be encoded as requested.

        `headers` are the server's own header lines; `close` announces the end of the connection.
        """
        start = perf_counter()
        head = pending.head
        encoded = self._codec.encode(pending.request, answer.outputs, answer.parameters)
        queue, infer = answer.queue_seconds, answer.infer_seconds
        body = encoded.body
        packing: Sequence[tuple[bytes, bytes]] = ()
        if head.accept:
            body, packing = compress_response(body, head.accept)
        times = self._timing(queue, infer)
        response = success_to_wire(
            headers, head.request_id, times, body, encoded.header_length, packing, close=close
        )
        serialize = perf_counter() - start
        self._host.answered(HTTP, pending.parse_seconds, queue, infer, serialize)
        record, observer = head.record, self._host.observer
        if record is not None and observer is not None:
            stages = Stages(pending.parse_seconds, queue, infer, serialize)
            observer.answered(record, stages, pending.request.inputs, answer, len(body))
        return response

    def _timing(self, queue: float, infer: float) -> bytes:
        """Return the Server-Timing header; most requests of a batch have the same."""
        if (queue, infer) != self._times:
            self._times = (queue, infer)
            self._times_text = timing(queue, infer)
        return self._times_text

    def reject(
        self, error: BaseException, request_id: bytes, record: RequestRecord | None = None
    ) -> Response:
        """Make and count the response to a failed request; an unexpected error shows no details."""
        if not is_public(error):
            logger.error("infer request %s failed", request_id.decode(), exc_info=error)
            error = failed()
        self._host.count(HTTP, error)
        self.report(record, error)
        if not isinstance(error, QueueFullError):
            return error_response(error, [(b"x-request-id", request_id)])
        # In overload many requests get the same error.
        if self._full is None or self._full[0] is not error:
            self._full = error, error_response(error)
        status, headers, body = self._full[1]
        return Response(status, [*headers, (b"x-request-id", request_id)], body)

    def connection_rejected(self, status: int) -> None:
        """Count a connection that the protocol rejected with `status` before any request."""
        error = MlctlError(_PROTOCOL_CODES[status], "the connection was rejected")
        self._host.count(HTTP, error)
        self.report(self.observe({}, self.request_id({})), error, status)

    def disconnected(self, record: RequestRecord | None = None) -> None:
        """Count a request whose client disconnected."""
        error = asyncio.CancelledError()
        self._host.count(HTTP, error)
        self.report(record, error)

    def report(
        self,
        record: RequestRecord | None,
        error: BaseException | None = None,
        status: int | None = None,
    ) -> None:
        """Report a failed or streamed request to the observer.

        `status` is the HTTP status if it is not that of the error.
        """
        if record is not None and self._host.observer is not None:
            self._host.observer.ended(record, error, status)

    async def _submit_apart(self, pending: PendingRequest, body: bytes, seconds: float) -> Answer:
        start = perf_counter()
        try:
            async with asyncio.timeout(seconds):
                request = await self._decode_apart(pending.head, body, pending.hold)
        except TimeoutError:
            raise deadline_exceeded() from None
        pending.request = request
        pending.parse_seconds = perf_counter() - start
        left = seconds - pending.parse_seconds
        limit = left if request.timeout is None else min(left, request.timeout)
        return await self._host.ask(request, limit, pending.head.priority or request.priority)

    async def _decode_apart(self, head: RequestHead, body: bytes, hold: Hold) -> InferRequest:
        if head.coding != IDENTITY:
            arrived, limit = len(body), self._host.settings.max_body_bytes
            body = await inflate_on_thread(
                body, head.coding, limit, lambda size: hold.grow(arrived + size), self._decoder
            )
            head = head._replace(coding=IDENTITY)
        if not _is_heavy(head, body):
            return self._codec.decode(body, head.json_length)
        loop = asyncio.get_running_loop()
        decode = self._codec.decode
        return await loop.run_in_executor(self._decoder, decode, body, head.json_length)


def _is_heavy(head: RequestHead, body: bytes) -> bool:
    """Return whether decoding the body may block the event loop for milliseconds."""
    json = len(body) if head.json_length is None else head.json_length
    return json > _HEAVY_JSON or head.coding != IDENTITY


def _values_of_row(signature: Signature) -> int:
    """Return how many values a row has at least, over all inputs; 0 if that is not known."""
    if not signature.batched or not signature.bounded:
        return 0
    return sum(math.prod(spec.shape[1:]) for spec in signature.inputs)


def timing(queue: float, infer: float) -> bytes:
    """Return the Server-Timing header of an answer; both times in seconds."""
    return b"queue;dur=%.3f, infer;dur=%.3f" % (queue * 1e3, infer * 1e3)


def too_large(limit: int) -> MlctlError:
    """Return the error of a body above `limit` bytes."""
    return MlctlError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"the body is larger than the limit of {limit} bytes"
    )


def _number(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"header {name.decode()} is not a number of bytes"
        )
    return int(value)
