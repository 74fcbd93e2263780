"""HTTP answers as values: the error table as JSON, and an answer as bytes on the wire."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.scheduler import QueueFullError

Headers = list[tuple[bytes, bytes]]
_JSON = b"application/json"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Response(NamedTuple):
    """A whole answer. `headers` have lower-case names and the content's type and length.

    A tuple, as one is made for every request and a frozen dataclass takes three times as long.
    """

    status: int
    headers: Headers
    body: bytes


class MethodError(MlctlError):
    """METHOD_NOT_ALLOWED, with the methods that are."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(ErrorCode.METHOD_NOT_ALLOWED, f"the path takes only {self.allowed}")


def make_response(
    status: int, media_type: bytes, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()
) -> Response:
    """An answer of `media_type`, with `extra` headers."""
    length = b"%d" % len(body)
    return Response(
        status, [(b"content-type", media_type), (b"content-length", length), *extra], body
    )


def json_response(
    status: int, document: Mapping[str, Any] | list[Any], extra: Iterable[tuple[bytes, bytes]] = ()
) -> Response:
    """An answer that is a JSON document."""
    return make_response(status, _JSON, json.dumps(document).encode(), extra)


def error_response(error: MlctlError, extra: Iterable[tuple[bytes, bytes]] = ()) -> Response:
    """The error table's status, and the headers that belong to the error."""
    headers = list(extra)
    if isinstance(error, QueueFullError):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    elif error.code is ErrorCode.UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    elif error.code is ErrorCode.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    elif isinstance(error, MethodError):
        headers.append((b"allow", error.allowed.encode()))
    document = {"error": error.message, "code": error.code.value, "hint": error.hint}
    return json_response(error.spec.http, document, headers)


def to_wire(response: Response, headers: bytes, *, close: bool) -> bytes:
    """The answer's bytes; `headers` are the server's own, rendered; `close` says so to the client.

    Nothing is checked: names and values must come from this program.
    """
    parts = [_STATUS_LINES[response.status], headers]
    for name, value in response.headers:
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    parts.append(response.body)
    return b"".join(parts)


def render_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header lines."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)
