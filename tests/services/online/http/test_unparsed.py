"""A request's size without a parse: only where its form leaves no doubt."""

from __future__ import annotations

import pytest

from services.online.http.unparsed import header_value, whole_request_size

TARGET = b"/v2/models/m/infer"
HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
REQUEST = HEAD + b"X-Request-Id: Ab1\r\n\r\nabc"


def test_whole_request__usual_form__has_its_size_and_headers() -> None:
    assert whole_request_size(REQUEST, {TARGET}) == 3
    assert header_value(REQUEST, b"x-request-id") == b"Ab1"
    assert header_value(REQUEST.lower(), b"x-request-id") == b"ab1"
    assert header_value(REQUEST, b"traceparent") is None
    last = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ncontent-length:3\r\n\r\nabc"
    assert whole_request_size(last, {TARGET}) == 3


def test_header_value__name_only_in_the_body__is_none() -> None:
    assert header_value(HEAD + b"\r\n\r\nX-Request-Id: Ab1\r\n", b"x-request-id") is None


@pytest.mark.parametrize(
    "request_bytes",
    [
        REQUEST[:-1],
        REQUEST + REQUEST,
        HEAD,
        b"",
        REQUEST.replace(b"POST", b"PUT"),
        REQUEST.replace(b"/m/", b"/n/"),
        REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"),
        REQUEST.replace(b": 3", b": 03x"),
        REQUEST.replace(b": 3", b": -3"),
        REQUEST.replace(b"Host: a", b"content-length: 3"),
        REQUEST.replace(b"Host: a", b"Transfer-Encoding: chunked"),
        REQUEST.replace(b"Host: a", b"Connection: close"),
        REQUEST.replace(b"Host: a", b"Expect: 100-continue"),
        REQUEST.replace(b"Host: a", b"Content-Encoding: gzip"),
        REQUEST.replace(b"Host: a", b"mlctl-priority: high"),
        REQUEST.replace(b"Content-Length:", b"Content-Length :"),
    ],
)
def test_whole_request__anything_unusual__is_left_to_the_parser(request_bytes: bytes) -> None:
    assert whole_request_size(request_bytes, {TARGET}) is None
