from __future__ import annotations

import json

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.scheduler import QueueFullError
from mlctl.services.online.http.responses import (
    MethodError,
    error_response,
    json_response,
    make_response,
    render_headers,
    to_wire,
)


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [
        (QueueFullError(1, 1, 2.3), 503, (b"retry-after", b"3")),
        (QueueFullError(1, 1, 0.0), 503, (b"retry-after", b"1")),
        (MlctlError(ErrorCode.UNAVAILABLE, "no"), 503, (b"retry-after", b"1")),
        (MethodError(["GET", "HEAD"]), 405, (b"allow", b"GET, HEAD")),
        (MlctlError(ErrorCode.INVALID_INPUT, "no"), 400, (b"x-given", b"1")),
    ],
)
def test_error_response__each_error__has_status_code_and_header(
    error: MlctlError, status: int, header: tuple[bytes, bytes]
) -> None:
    response = error_response(error, [(b"x-given", b"1")])
    assert response.status == status
    assert header in response.headers
    document = json.loads(response.body)
    assert document == {"error": error.message, "code": error.code.value, "hint": error.hint}


def test_to_wire__response__has_headers_then_body() -> None:
    response = make_response(200, b"text/plain", b"body", [(b"x-a", b"b")])
    own = render_headers([(b"date", b"now")])
    head = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n"
    assert to_wire(response, own, close=False) == head + b"x-a: b\r\n\r\nbody"
    assert to_wire(response, own, close=True) == head + b"x-a: b\r\nconnection: close\r\n\r\nbody"
    assert to_wire(json_response(404, {}), b"", close=False).startswith(b"HTTP/1.1 404 Not Found")
