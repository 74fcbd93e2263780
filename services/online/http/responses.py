"""HTTP responses as values and as bytes on the wire, and the request ids that they return."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import count
from typing import Any, NamedTuple

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.security.public import THROTTLED

Headers = list[tuple[bytes, bytes]]
_JSON = b"application/json"
_THROTTLED = (THROTTLED[0].encode(), THROTTLED[1].encode())
_FIT = re.compile(rb"[!-~]{1,128}")
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Response(NamedTuple):
    """A whole response. `headers` have lower-case names, and the content's type and length."""

    status: int
    headers: Headers
    body: bytes


class MethodError(MlctlError):
    """METHOD_NOT_ALLOWED with the methods that are allowed."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(
            ErrorCode.METHOD_NOT_ALLOWED, f"method not allowed; allowed: {self.allowed}"
        )


def make_response(
    status: int, media_type: bytes, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()
) -> Response:
    """Return a response of `media_type`, with `extra` headers."""
    length = b"%d" % len(body)
    return Response(
        status, [(b"content-type", media_type), (b"content-length", length), *extra], body
    )


def json_response(
    status: int, document: Mapping[str, Any] | list[Any], extra: Iterable[tuple[bytes, bytes]] = ()
) -> Response:
    """Return a response that is a JSON document."""
    return make_response(status, _JSON, json.dumps(document).encode(), extra)


def error_response(error: MlctlError, extra: Iterable[tuple[bytes, bytes]] = ()) -> Response:
    """Return the response to a failed request: the error table's status, headers and document."""
    headers = list(extra)
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    if error.code is ErrorCode.RATE_LIMIT_EXCEEDED:
        headers.append(_THROTTLED)
    elif error.code is ErrorCode.UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    elif error.code is ErrorCode.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    elif isinstance(error, MethodError):
        headers.append((b"allow", error.allowed.encode()))
    document = {"error": error.message, "code": error.code.value, "hint": error.hint}
    return json_response(error.spec.http, document, headers)


def to_wire(response: Response, headers: bytes, *, close: bool) -> bytes:
    """Return the response's bytes.

    `headers` are the server's own header lines; `close` announces the end of the connection.
    Nothing is checked: names and values must come from this program.
    """
    parts = [_STATUS_LINES[response.status], headers]
    for name, value in response.headers:
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    parts.append(response.body)
    return b"".join(parts)


def render_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as lines."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class RequestIds:
    """Request ids: the client's if it is safe to return, else a new and unique one."""

    def __init__(self) -> None:
        self._process = b"%x-" % int.from_bytes(os.urandom(6))
        self._numbers = count()

    def of(self, client_id: bytes | None) -> bytes:
        """Return `client_id` if it has 1 to 128 visible characters, else a new id."""
        if client_id is not None and _FIT.fullmatch(client_id):
            return client_id
        return self.make()

    def make(self) -> bytes:
        """Return a new id."""
        return b"%b%x" % (self._process, next(self._numbers))
