"""One infer request over HTTP, from its head and body to its answer.

The protocol asks this for whole answers and the ASGI application for streamed ones, so that both
have the same limits, errors, headers and counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple
from urllib.parse import quote

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Signature
from services.online.batching.admission import QueueFullError
from services.online.batching.budget import Hold
from services.online.batching.desks import Caller, Desk
from services.online.batching.executor import Answer
from services.online.batching.scheduler import deadline_exceeded
from services.online.http.responses import Response, error_response, make_response
from services.online.models.served_model import ServedModel
from services.online.observability.calls import HTTP, RequestRecord, Stages
from services.online.observability.ids import RequestIds
from services.online.security.public import failed, is_public
from services.protocol.codec import Encoded, V2Codec
from services.protocol.compression import (
    IDENTITY,
    compress_response,
    content_coding,
    inflate_on_thread,
)
from services.protocol.header import Header
from services.protocol.priority import Priority, parse_priority
from services.protocol.wire import InferRequest
from services.runtime.padding import Arrays
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
    Accept-Encoding, `seen` the observability record of the request, or None.

    A tuple, as one is made for every request and a frozen dataclass takes three times as long.
    """

    request_id: bytes
    json_length: int | None
    coding: str
    accept: bytes
    priority: Priority | None
    seen: RequestRecord | None = None


@dataclass(slots=True)
class PendingRequest:
    """A request that waits for the model; `request` is set before the answer is."""

    head: RequestHead
    request: InferRequest = field(init=False)
    future: asyncio.Future[Answer] = field(init=False)
    parse_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AskedStream:
    """A decoded request, and the parts of its streamed answer."""

    request: InferRequest
    pieces: AnswerStream


class InferHandler:
    """Answers the infer requests of one model."""

    def __init__(self, host: ServedModel) -> None:
        self._host = host
        self._codec = V2Codec(host.name, host.digest, host.signature)
        # Two, so that one large body does not hold up all others.
        self._decoder = ThreadPoolExecutor(2, "mlctl-decode")
        self._ids = RequestIds()
        self.new_id = self._ids.make

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
    def seconds(self) -> float:
        """The maximum time of a request from its headers to its answer, in seconds."""
        return self._host.settings.deadline_ms / 1000

    def request_id(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return the caller's X-Request-Id if it can be echoed, else a new id."""
        return self._ids.of(headers.get(b"x-request-id"))

    def watch(
        self, headers: Mapping[bytes, bytes], request_id: bytes, client: object = None
    ) -> RequestRecord | None:
        """Return the observability record of this request, or None if nothing is enabled."""
        observer = self._host.observer
        if observer is None:
            return None
        traceparent, tracestate = headers.get(b"traceparent"), headers.get(b"tracestate")
        return observer.begin(HTTP, request_id, traceparent, client, tracestate)

    def admit(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise UNAUTHENTICATED if the server requires a token and the headers have none."""
        self._host.access.require(headers.get(b"authorization"))

    def lasting(self, content: bytes) -> Header | None:
        """The V2 header that `content` is, if it was met and may well come again."""
        return self._codec.cached_header(content)

    def join_key(self, inputs: Arrays) -> Hashable | None:
        """See `Batching.join_key`; None as well where each request is looked at by itself."""
        return None if self._host.observer is not None else self._host.join_key(inputs)

    def take_in(self, size: int, authorization: bytes | None) -> bool:
        """Whether a request that was met before is taken, and a body of `size` bytes then held.

        It is not where it would be refused, or observed: it has to go the long way.
        """
        host = self._host
        if size > host.settings.max_body_bytes or host.observer is not None:
            return False
        return host.access.allows(authorization) and host.inflight.take(size)

    def refusal(
        self, size: int, authorization: bytes | None, rows: int, priority: Priority
    ) -> QueueFullError | None:
        """See `Batching.refusal`; for a request that `take_in` would take if there is room."""
        host = self._host
        if size > host.settings.max_body_bytes or host.observer is not None:
            return None
        return host.refusal(rows, priority) if host.access.allows(authorization) else None

    def let_go(self, size: int) -> None:
        """A body that was taken in is held no more."""
        self._host.inflight.used -= size

    def submit_all(self, callers: Sequence[Caller], desk: Desk) -> None:
        """See `Batching.submit_all`; UNAVAILABLE unless ready."""
        self._host.submit_all(callers, desk)

    def withdraw(self, caller: Caller) -> None:
        """See `Batching.withdraw`."""
        self._host.withdraw(caller)

    def decode(self, head: RequestHead, body: bytes) -> InferRequest:
        """Return the request in a body without a content coding; raises INVALID_INPUT."""
        return self._codec.decode(body, head.json_length)

    def encode(self, request: InferRequest, outputs: Arrays) -> Encoded:
        """Encode an answer's body."""
        return self._codec.encode(request, outputs)

    def answered(
        self, count: int, parse: float, queue: float, infer: float, serialize: float
    ) -> None:
        """Count `count` answers and the seconds that each of them spent in each stage."""
        self._host.stages(parse, queue, infer, serialize, count)
        self._host.count(HTTP, None, count)

    def open(
        self, headers: Mapping[bytes, bytes], request_id: bytes, seen: RequestRecord | None = None
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
        return RequestHead(request_id, json_length, coding, accept, priority, seen)

    def hold(self) -> Hold:
        """Return a request's share of the bytes in flight, still empty.

        The caller grows it as the body arrives and releases it when the request is over.
        """
        return Hold(self._host.inflight)

    def check_size(self, size: int) -> None:
        """Raise PAYLOAD_TOO_LARGE for a body of `size` bytes above the limit."""
        if size > self._host.settings.max_body_bytes:
            raise too_large(self._host.settings.max_body_bytes)

    def ask(self, head: RequestHead, body: bytes, timeout: float, hold: Hold) -> PendingRequest:
        """Inflate and decode the body and ask the model, which has at most `timeout` seconds.

        `hold` has the body's bytes; what a compressed body inflates to is added.
        """
        start = perf_counter()
        if head.seen is not None:
            head.seen.bytes_in = len(body)
        asked = PendingRequest(head)
        if _is_heavy(head, body):
            loop = asyncio.get_running_loop()
            asked.future = loop.create_task(self._infer_apart(asked, body, timeout, hold))
            return asked
        request = asked.request = self.decode(head, body)
        asked.parse_seconds = perf_counter() - start
        limit = timeout if request.timeout is None else min(timeout, request.timeout)
        asked.future = self._host.ask(request, limit, head.priority or request.priority)
        return asked

    async def ask_stream(self, head: RequestHead, body: bytes, hold: Hold) -> AskedStream:
        """Decode the body and ask the model for a streamed answer, sent as JSON.

        `hold` is that of `ask`.
        """
        if head.seen is not None:
            head.seen.bytes_in = len(body)
        if _is_heavy(head, body):
            request = await self._decode_apart(head, body, hold)
        else:
            request = self.decode(head, body)
        if binary := [name for name, wanted in request.outputs.items() if wanted]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"output {binary[0]!r} is requested as binary data, which no event carries",
                "Request it as JSON, or use ModelStreamInfer of the gRPC API.",
            )
        priority = head.priority or request.priority
        return AskedStream(request, self._host.stream(request.inputs, request.timeout, priority))

    def encode_piece(self, asked: AskedStream, piece: Answer) -> bytes:
        """Encode one part of a streamed answer as one line of JSON."""
        return self._codec.encode(asked.request, piece.outputs).body

    def encode_end(self, asked: AskedStream) -> bytes:
        """Encode the response that ends a streamed answer, and count the request."""
        self._host.count("http", None)
        return self._codec.encode_final(asked.request)

    def answer(self, asked: PendingRequest, answer: Answer) -> Response:
        """Make and count the response; raises if it cannot be encoded as requested."""
        start = perf_counter()
        encoded = self._codec.encode(asked.request, answer.outputs, answer.parameters)
        queue, infer = answer.queue_seconds, answer.infer_seconds
        extra = [(b"server-timing", timing(queue, infer)), (b"x-request-id", asked.head.request_id)]
        if encoded.header_length is not None:
            extra.append((b"inference-header-content-length", b"%d" % encoded.header_length))
        body, packing = compress_response(encoded.body, asked.head.accept)
        response = make_response(200, encoded.content_type.encode(), body, [*extra, *packing])
        serialize = perf_counter() - start
        self._host.stages(asked.parse_seconds, queue, infer, serialize)
        self._host.count("http", None)
        seen, observer = asked.head.seen, self._host.observer
        if seen is not None and observer is not None:
            stages = Stages(asked.parse_seconds, queue, infer, serialize)
            observer.answered(seen, stages, asked.request.inputs, answer, len(body))
        return response

    def refuse(
        self, error: BaseException, request_id: bytes, seen: RequestRecord | None = None
    ) -> Response:
        """Make and count the response to a failed request; an unexpected error shows no details."""
        if not is_public(error):
            logger.error("infer request %s failed", request_id.decode(), exc_info=error)
            error = failed()
        self._host.count("http", error)
        self.ended(seen, error)
        return error_response(error, [(b"x-request-id", request_id)])

    def failed(self, error: BaseException, count: int = 1) -> None:
        """Count `count` failed requests that have no observability record."""
        self._host.count(HTTP, error, count)

    def refused(self, status: int, client: object = None) -> None:
        """Count a connection that the protocol rejected with `status` before any request."""
        error = MlctlError(_PROTOCOL_CODES[status], "the connection was refused")
        self._host.count(HTTP, error)
        self.ended(self.watch({}, self.request_id({}), client), error, status)

    def gone(self, seen: RequestRecord | None = None) -> None:
        """Count a request whose client disconnected."""
        error = asyncio.CancelledError()
        self._host.count("http", error)
        self.ended(seen, error)

    def ended(
        self,
        seen: RequestRecord | None,
        error: BaseException | None = None,
        told: int | None = None,
    ) -> None:
        """Report a failed or streamed request to the observers."""
        if seen is not None and self._host.observer is not None:
            self._host.observer.ended(seen, error, told)

    async def _infer_apart(
        self, asked: PendingRequest, body: bytes, seconds: float, hold: Hold
    ) -> Answer:
        start = perf_counter()
        try:
            async with asyncio.timeout(seconds):
                request = asked.request = await self._decode_apart(asked.head, body, hold)
        except TimeoutError:
            raise deadline_exceeded() from None
        asked.parse_seconds = perf_counter() - start
        left = seconds - asked.parse_seconds
        limit = left if request.timeout is None else min(left, request.timeout)
        priority = asked.head.priority or request.priority
        return await self._host.ask(request, limit, priority)

    async def _decode_apart(self, head: RequestHead, body: bytes, hold: Hold) -> InferRequest:
        if head.coding != IDENTITY:
            came, limit = len(body), self._host.settings.max_body_bytes
            body = await inflate_on_thread(
                body, head.coding, limit, lambda size: hold.grow(came + size), self._decoder
            )
            head = head._replace(coding=IDENTITY)
        if not _is_heavy(head, body):
            return self.decode(head, body)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoder, self.decode, head, body)


def _is_heavy(head: RequestHead, body: bytes) -> bool:
    """Return whether decoding the body may block the event loop for milliseconds."""
    json = len(body) if head.json_length is None else head.json_length
    return json > _HEAVY_JSON or head.coding != IDENTITY


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
