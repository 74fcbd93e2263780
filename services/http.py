"""The V2 protocol over HTTP as a plain ASGI application, answered before BentoML's middleware.

Limits come before parsing: the declared length, then the streamed one. Errors are
`{"error": sentence, "code": stable name}` and tell nothing about the server's inside.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from bundle import __version__
from bundle.errors import ErrorCode, MlctlError
from services.batcher import QueueFullError, deadline_exceeded
from services.batching import Answer
from services.codec import V2Codec
from services.host import ModelHost, metadata_tensors, require_model

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PLATFORM = "onnxruntime_onnx"
EXTENSIONS = ("binary_tensor_data",)
_MEDIA_TYPES = frozenset({b"", b"application/json", b"application/octet-stream"})
_JSON = b"application/json"
logger = logging.getLogger("mlctl.http")


class _GoneError(Exception):
    """The client left before its request was whole."""


class V2App:
    """Answers every path under /v2 for one model."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._codec = V2Codec(host.name, host.digest, host.signature)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the V2 app takes HTTP, not {scope['type']}")
        parts = [unquote(part) for part in scope["path"].strip("/").split("/")]
        try:
            if parts[-1] == "infer" and parts[1:2] == ["models"]:
                await self._infer(scope, parts, receive, send)
            else:
                _require_method(scope, "GET", "HEAD")
                status, document = self._describe(parts)
                await _send_json(send, status, document)
        except MlctlError as error:
            await send_error(send, error)

    def _describe(self, parts: list[str]) -> tuple[int, Mapping[str, Any]]:
        match parts[1:]:
            case []:
                return 200, {"name": "mlctl", "version": __version__, "extensions": EXTENSIONS}
            case ["health", "live"]:
                return 200, {"live": True}
            case ["health", "ready"]:
                return self._readiness()
            case ["models", name, *rest]:
                return self._describe_model(name, rest)
        raise _no_such_path()

    def _describe_model(self, name: str, rest: list[str]) -> tuple[int, Mapping[str, Any]]:
        match rest:
            case [] | ["ready"]:
                require_model(self._host, name)
            case ["versions", version] | ["versions", version, "ready"]:
                require_model(self._host, name, version)
            case _:
                raise _no_such_path()
        return self._readiness() if rest[-1:] == ["ready"] else (200, self._metadata())

    def _readiness(self) -> tuple[int, Mapping[str, Any]]:
        return (200 if self._host.ready else 503), {"ready": self._host.ready}

    def _metadata(self) -> Mapping[str, Any]:
        tensors = {
            side: [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in specs]
            for side, specs in metadata_tensors(self._host).items()
        }
        identity = {"name": self._host.name, "versions": [self._host.digest]}
        return {**identity, "platform": PLATFORM, **tensors}

    async def _infer(self, scope: Message, parts: list[str], receive: Receive, send: Send) -> None:
        failure: BaseException | None = None
        try:
            await self._answer(scope, parts, receive, send)
        except _GoneError:
            failure = asyncio.CancelledError()
        except MlctlError as error:
            failure = error
            raise
        except asyncio.CancelledError as error:
            failure = error
            raise
        except Exception as error:
            failure = error
            logger.exception("an infer request failed")
            raise MlctlError(ErrorCode.INTERNAL, "the request failed in the server") from error
        finally:
            self._host.count("http", failure)

    async def _answer(self, scope: Message, parts: list[str], receive: Receive, send: Send) -> None:
        _require_method(scope, "POST")
        match parts[2:-1]:
            case [name]:
                require_model(self._host, name)
            case [name, "versions", version]:
                require_model(self._host, name, version)
            case _:
                raise _no_such_path()
        headers = dict(scope["headers"])
        header_length = _check_headers(headers)
        settings, loop = self._host.settings, asyncio.get_running_loop()
        deadline = loop.time() + settings.deadline_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                body = await _read_body(headers, receive, settings.max_body_bytes)
        except TimeoutError:
            raise deadline_exceeded() from None
        request = self._codec.decode(body, header_length)
        left = deadline - loop.time()
        timeout = left if request.timeout is None else min(left, request.timeout)
        answer = await _unless_gone(self._host.infer(request.inputs, timeout), receive)
        encoded = self._codec.encode(request, answer.outputs)
        extra = [(b"server-timing", _server_timing(answer))]
        if encoded.header_length is not None:
            extra.append((b"inference-header-content-length", b"%d" % encoded.header_length))
        await _send(send, 200, encoded.content_type.encode(), encoded.body, extra)


async def _unless_gone(future: asyncio.Future[Answer], receive: Receive) -> Answer:
    """The answer, or `_GoneError` (and the request withdrawn) if the client disconnects first."""
    watch = asyncio.ensure_future(receive())
    watch.add_done_callback(lambda _: future.cancel())
    try:
        return await future
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled():
            raise _GoneError from None
        raise
    finally:
        watch.cancel()


async def _read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The whole body; PAYLOAD_TOO_LARGE by the declared length at once, else while it streams."""
    declared = _number(headers, b"content-length")
    if declared is not None and declared > limit:
        raise too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large(limit)
        if not message.get("more_body"):
            return bytes(body)


def _check_headers(headers: Mapping[bytes, bytes]) -> int | None:
    """The length of the JSON part, if its header is there; UNSUPPORTED_MEDIA_TYPE if not ours."""
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type not in _MEDIA_TYPES:
        raise MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the content type is not served")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "compressed requests are not served",
            "Send the body without Content-Encoding.",
        )
    return _number(headers, b"inference-header-content-length")


def _number(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"header {name.decode()} is not a number of bytes"
        )
    return int(value)


def too_large(limit: int) -> MlctlError:
    """The error of a body that is longer than `limit` bytes."""
    return MlctlError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"the body is larger than the limit of {limit} bytes"
    )


class _MethodError(MlctlError):
    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(ErrorCode.METHOD_NOT_ALLOWED, f"the path takes only {self.allowed}")


def _require_method(scope: Message, *allowed: str) -> None:
    if scope["method"] not in allowed:
        raise _MethodError(allowed)


def _no_such_path() -> MlctlError:
    return MlctlError(ErrorCode.NOT_FOUND, "the V2 protocol has no such path")


def _server_timing(answer: Answer) -> bytes:
    queue, infer = answer.queue_seconds * 1e3, answer.infer_seconds * 1e3
    return b"queue;dur=%.3f, infer;dur=%.3f" % (queue, infer)


async def send_error(send: Send, error: MlctlError) -> None:
    """Answer with the error table's status, and the headers that belong to it."""
    extra: Headers = []
    if isinstance(error, QueueFullError):
        extra.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    elif error.code is ErrorCode.UNAVAILABLE:
        extra.append((b"retry-after", b"1"))
    elif isinstance(error, _MethodError):
        extra.append((b"allow", error.allowed.encode()))
    document = {"error": error.message, "code": error.code.value, "hint": error.hint}
    await _send_json(send, error.spec.http, document, extra)


async def _send_json(
    send: Send, status: int, document: Mapping[str, Any], extra: Headers | None = None
) -> None:
    await _send(send, status, _JSON, json.dumps(document).encode(), extra or [])


async def _send(send: Send, status: int, media_type: bytes, body: bytes, extra: Headers) -> None:
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
