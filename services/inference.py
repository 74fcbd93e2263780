"""One infer request over HTTP, from its head and body to its answer, whoever carries the bytes.

The lean protocol and the ASGI application both ask this, so that both have the same
limits, errors, headers and counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from urllib.parse import quote

from bundle.errors import ErrorCode, MlctlError
from services.batching import Answer
from services.codec import V2Codec
from services.encoding import IDENTITY, content_coding, inflate, pack
from services.host import ModelHost
from services.lanes import Priority, parse_priority
from services.responses import Response, error_response, make_response
from services.wire import InferRequest

_MEDIA_TYPES = frozenset({b"", b"application/json", b"application/octet-stream"})
# What may be sent back in a header as it came.
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
logger = logging.getLogger("mlctl.http")


@dataclass(frozen=True, slots=True)
class Head:
    """What an infer request's headers say.

    `json_length` is that of the body's JSON part in bytes, `priority` wins over the body's,
    both None if not given; `coding` is the body's content coding, `accept` the header
    Accept-Encoding.
    """

    request_id: bytes
    json_length: int | None
    coding: str
    accept: bytes
    priority: Priority | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was decoded and is with the model."""

    head: Head
    request: InferRequest
    future: asyncio.Future[Answer]
    parse_seconds: float


class Inference:
    """Answers the infer requests of one model."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._codec = V2Codec(host.name, host.digest, host.signature)
        self._process = b"%x-" % int.from_bytes(os.urandom(6))
        self._numbers = count()

    @property
    def targets(self) -> frozenset[bytes]:
        """The request targets that certainly mean this model's infer, as clients send them."""
        path = f"/v2/models/{quote(self._host.name, safe='')}"
        version = f"{path}/versions/{self._host.digest}"
        return frozenset({f"{path}/infer".encode(), f"{version}/infer".encode()})

    @property
    def seconds(self) -> float:
        """The longest that a request may take, from its headers to its answer."""
        return self._host.settings.deadline_ms / 1000

    def request_id(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The caller's X-Request-Id if it can be sent back, else one of our own."""
        given = headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return b"%b%x" % (self._process, next(self._numbers))

    def open(self, headers: Mapping[bytes, bytes], request_id: bytes) -> Head:
        """Check the headers, before anything of the body is read.

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
        return Head(request_id, json_length, coding, accept, priority)

    def check_size(self, size: int) -> None:
        """PAYLOAD_TOO_LARGE for a body of `size` bytes that is above the limit."""
        if size > self._host.settings.max_body_bytes:
            raise too_large(self._host.settings.max_body_bytes)

    def ask(self, head: Head, body: bytes, timeout: float) -> Asked:
        """Inflate and decode the body and ask the model, which has at most `timeout` seconds."""
        start = perf_counter()
        if head.coding != IDENTITY:
            body = inflate((body,), head.coding, self._host.settings.max_body_bytes)
        request = self._codec.decode(body, head.json_length)
        parsed = perf_counter() - start
        limit = timeout if request.timeout is None else min(timeout, request.timeout)
        future = self._host.infer(request.inputs, limit, head.priority or request.priority)
        return Asked(head, request, future, parsed)

    def answer(self, asked: Asked, answer: Answer) -> Response:
        """The answer to what was asked, counted; raises if it cannot be encoded as requested."""
        start = perf_counter()
        encoded = self._codec.encode(asked.request, answer.outputs)
        queue, infer = answer.queue_seconds, answer.infer_seconds
        timing = b"queue;dur=%.3f, infer;dur=%.3f" % (queue * 1e3, infer * 1e3)
        extra = [(b"server-timing", timing), (b"x-request-id", asked.head.request_id)]
        if encoded.header_length is not None:
            extra.append((b"inference-header-content-length", b"%d" % encoded.header_length))
        body, packing = pack(encoded.body, asked.head.accept)
        response = make_response(200, encoded.content_type.encode(), body, [*extra, *packing])
        self._host.stages(asked.parse_seconds, queue, infer, perf_counter() - start)
        self._host.count("http", None)
        return response

    def refuse(self, error: BaseException, request_id: bytes) -> Response:
        """The answer to a request that failed, counted; an unexpected error shows nothing."""
        if not isinstance(error, MlctlError):
            logger.error("infer request %s failed", request_id.decode(), exc_info=error)
            error = MlctlError(ErrorCode.INTERNAL, "the request failed in the server")
        self._host.count("http", error)
        return error_response(error, [(b"x-request-id", request_id)])

    def gone(self) -> None:
        """Count a request whose caller left."""
        self._host.count("http", asyncio.CancelledError())


def too_large(limit: int) -> MlctlError:
    """The error of a body that is longer than `limit` bytes."""
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
