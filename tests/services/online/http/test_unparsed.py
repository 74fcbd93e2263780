"""A request's size without a parse: only where its form leaves no doubt."""

from __future__ import annotations

import pytest

from mlctl.services.online.http.unparsed import read_unparsed

LINES = (b"POST /v2/models/m/infer HTTP/1.1\r\n",)
HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
REQUEST = HEAD + b"X-Request-Id: Ab1\r\n\r\nabc"


def test_read_unparsed__usual_form__has_its_size_and_headers() -> None:
    fields = {b"content-length": b"3", b"x-request-id": b"Ab1"}
    assert read_unparsed(REQUEST, LINES) == (3, fields)
    traced = REQUEST.replace(b"X-Request-Id: Ab1", b"Connection: keep-alive\r\nTRACEPARENT: t")
    named = {b"content-length": b"3", b"connection": b"keep-alive", b"traceparent": b"t"}
    assert read_unparsed(traced, LINES) == (3, named)
    last = LINES[0] + b"host: a\r\ncontent-length:3\r\n\r\nabc"
    assert read_unparsed(last, LINES) == (3, {b"content-length": b"3"})


def test_read_unparsed__name_only_in_the_body__is_no_header() -> None:
    body = b"\r\nX-Request-Id: Ab1\r\n"
    whole = HEAD.replace(b": 3", b": %d" % len(body)) + b"\r\n" + body
    assert read_unparsed(whole, LINES) == (len(body), {b"content-length": b"21"})


def test_read_unparsed__priority__counts_in_the_json_alone() -> None:
    head = LINES[0] + b"Content-Length: 20\r\nInference-Header-Content-Length: %d\r\n\r\n"
    body = b'{"id": "a"}=priority'
    assert read_unparsed(head % 11 + body, LINES) is not None
    assert read_unparsed(head % 20 + body, LINES) is None
    assert read_unparsed(head.replace(b"%d", b"1x") + body, LINES) is None


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
        REQUEST.replace(b"Host: a", b"Transfer-Encoding : chunked"),
        REQUEST.replace(b"Host: a", b"X-Request-Id: other"),
        # Heads that a proxy may read differently.
        REQUEST.replace(b"Host: a", b"Proxy-Connection: close"),
        REQUEST.replace(b"Host: a", b"Host: a\r\n Transfer-Encoding: chunked"),
        REQUEST.replace(b"Host: a", b"Transfer-Encoding\x0b: chunked"),
        REQUEST.replace(b"Host: a", b"X: y\rTransfer-Encoding: chunked"),
        REQUEST.replace(b"Host: a", b"\0Transfer-Encoding: chunked"),
        REQUEST.replace(b"Host: a", b"Host: a\nX: y"),
        REQUEST.replace(b"Host: a", b"X: \0"),
        REQUEST.replace(b"Host: a", b"no colon"),
        REQUEST.replace(b"abc", b"priority").replace(b": 3", b": 8"),
    ],
)
def test_read_unparsed__anything_unusual__is_left_to_the_parser(request_bytes: bytes) -> None:
    assert read_unparsed(request_bytes, LINES) is None
