"""RFC 9110 and RFC 9112 by section: what a request may look like, and what is rejected."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from mlctl.services.online.turns import turns_of
from tests.services.online.http.connection.conftest import (
    BODY,
    INFER,
    Bench,
    read_reply,
    request,
)
from tests.services.online.http.connection.test_protocol import CLOSE, connected, talk
from tests.support.listening import Listening

GET = b"GET /v2 HTTP/1.1\r\nHost: test\r\n\r\n"
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"


def get(line: str = "GET /v2 HTTP/1.1", host: str = "test", more: str = "") -> bytes:
    return f"{line}\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n".encode()


def post(more: str, body: bytes = BODY, path: str = INFER, version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: test\r\nConnection: close\r\n{more}\r\n"
    return head.encode() + body


LENGTH = f"Content-Length: {len(BODY)}"


@pytest.mark.parametrize(
    ("section", "content", "status"),
    [
        ("9112 2.3", get("GET /v2 HTTP/2.0"), 400),
        ("9112 2.3", get("GET /v2 HTTP/0.9"), 400),
        ("9112 2.3", post(f"{LENGTH}\r\n", version="2.0"), 400),
        ("9112 2.2", b"\r\n\r\n" + get(), 200),
        ("9112 3.2", get("GET /v2#part HTTP/1.1"), 400),
        ("9112 3.2", post(f"{LENGTH}\r\n", path=f"{INFER}#part"), 400),
        ("9112 3.2", post(f"{LENGTH}\r\n", path=f"{INFER}?a=b"), 200),
        *[
            ("9112 3.2", get(host=host), 400)
            for host in ("a b", "a/b", "a@b", "a,b:x", "[::1", "a:b:c")
        ],
        *[
            ("9110 7.2", get(host=host), 200)
            for host in ("", "test:80", "127.0.0.1:", "[::1]:8080", "a_b.c-d", "%41")
        ],
        ("9112 3.2", post(f"{LENGTH}\r\n").replace(b"Host: test", b"Host: te st"), 400),
        *[
            ("9112 5.1", post(f"Content-Length:{before}{len(BODY)}{after}\r\n"), 200)
            for before in ("", " ", "\t", " \t")
            for after in ("", " ", "\t", "\t \t")
        ],
        ("9112 5.1", post(f"Content-Length : {len(BODY)}\r\n"), 400),
        ("9112 5.1", post(f"{LENGTH}\tx\r\n"), 400),
        ("9112 6.1", post("Transfer-Encoding: gzip, chunked\r\n", CHUNKED), 501),
        ("9112 6.1", post("Transfer-Encoding: a\r\nTransfer-Encoding: chunked\r\n", CHUNKED), 501),
        ("9112 6.1", post("Transfer-Encoding: chunked, gzip\r\n", CHUNKED), 400),
        ("9112 6.1", post("Transfer-Encoding: chunked\r\n", CHUNKED, version="1.0"), 400),
        ("9112 6.1", post("Transfer-Encoding: Chunked\r\n", CHUNKED, "/v2/models/no/infer"), 404),
        ("9112 6.3", post(f"{LENGTH}\r\nTransfer-Encoding: chunked\r\n", CHUNKED), 400),
        ("9112 6.3", post(f"{LENGTH}\r\nContent-Length: 1\r\n"), 400),
        *[("9112 6.3", post(f"Content-Length: {value}\r\n"), 400) for value in ("+2", "0x2", "2,")],
    ],
)  # fmt: skip
def test_request__by_section__has_the_status(
    bench: Bench, section: str, content: bytes, status: int
) -> None:
    async def use(server: Listening) -> None:
        (reply,) = await talk(server, content)
        assert reply.status == status, section

    bench.run(use)


@pytest.mark.parametrize("share", [1e-5, math.inf])
@pytest.mark.parametrize("size", [1, 3, 7, 61, 1 << 20])
def test_pipelining__reads_of_any_size__are_answered_one_by_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, size: int, share: float
) -> None:
    """The ends of heads, bodies and chunks fall on each place of a read."""
    chunked = f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
    inner = BODY[:-1] + b'\r\n\r\n"x"}'
    content = b"".join(
        [
            *[GET, request(), chunked + chunks + b"\r\n", GET, request(body=inner), GET],
            *[chunked + chunks + b"a: b\r\n\r\n", request(body=b"")],
            request(headers=CLOSE),
        ]
    )

    async def use(server: Listening) -> None:
        monkeypatch.setattr(turns_of(asyncio.get_running_loop()), "share", share)
        async with connected(server) as (reader, writer):
            for start in range(0, len(content), size):
                writer.write(content[start : start + size])
                await asyncio.sleep(0)
            found = [(await read_reply(reader)).status for _ in range(9)]
            assert found == [200, 200, 200, 200, 400, 200, 200, 400, 200]
            assert await reader.read() == b""

    bench.run(use)


@pytest.mark.parametrize("middle", [0, 1, 2])
def test_pipelining__end_falls_on_any_place_of_a_read__next_request_waits(
    bench: Bench, middle: int
) -> None:
    """The first read ends anywhere, the second has `middle` bytes, the third has whole requests."""
    content = GET + GET + request(headers=CLOSE)

    async def use(server: Listening) -> None:
        for cut in range(1, len(GET) + 1):
            async with connected(server) as (reader, _):
                (protocol,) = await connections(server)
                for piece in (content[:cut], content[cut : cut + middle], content[cut + middle :]):
                    protocol.data_received(piece)
                assert [(await read_reply(reader)).status for _ in range(3)] == [200] * 3, cut
                assert await reader.read() == b""
            while server.state.connections:  # noqa: ASYNC110 - the server ends it in a tick
                await asyncio.sleep(0)

    bench.run(use)


@pytest.mark.parametrize("content", [GET, request("/v2/models/nope/infer", b"{}")])
def test_pipelining__client_reads_no_answer__server_stops_reading(
    bench: Bench, content: bytes
) -> None:
    """Else the requests of one client fill the memory."""

    async def use(server: Listening) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        (protocol,) = await connections(server)
        longest = 0
        for _ in range(50):
            writer.write(content * 500)
            await asyncio.sleep(0)
            longest = max(longest, len(protocol._unread))
        assert protocol.flow.read_paused
        assert not protocol.pipeline
        assert longest <= 1 << 20
        writer.transport.abort()

    bench.run(use)


async def connections(server: Listening) -> list[Any]:
    while not server.state.connections:  # noqa: ASYNC110 - the server accepts it in a tick
        await asyncio.sleep(0)
    return list(server.state.connections)
