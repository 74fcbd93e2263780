"""HTTP on raw connections: requests of the infer path, others, and the answer of each."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.http.connection.protocol import InferCycle
from tests.services.online.http.connection.conftest import (
    BODY,
    INFER,
    LIMIT,
    Bench,
    Reply,
    read_reply,
    request,
)
from tests.support.listening import Listening, until
from tests.support.models import replace_infer

Lean = list[InferCycle]
CHUNKED = (
    f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    f"{len(BODY) - 5:x}\r\n".encode()
    + BODY[:-5]
    + b"\r\n5\r\n"
    + BODY[-5:]
    + b"\r\n0\r\nX-Trailer: no\r\n\r\n"
)
ROW = {"x": np.ones((1, 4), np.float32)}
CLOSE = "Connection: close\r\n"


@asynccontextmanager
async def connected(
    server: Listening,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def talk(server: Listening, content: bytes) -> list[Reply]:
    """Send `content` at once and read answers until the server closes."""
    async with connected(server) as (reader, writer):
        writer.write(content)
        replies = []
        while not reader.at_eof():
            try:
                replies.append(await read_reply(reader))
            except asyncio.IncompleteReadError as error:
                assert not error.partial
        return replies


def never(host: Any, monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[Answer]]:
    """The futures of a model that does not answer."""
    requests: list[asyncio.Future[Answer]] = []

    def infer(*_arguments: Any) -> asyncio.Future[Answer]:
        requests.append(asyncio.get_running_loop().create_future())
        return requests[-1]

    replace_infer(monkeypatch, host, infer)
    return requests


def test_infer__two_requests__are_answered_by_the_infer_path(bench: Bench, cycles: Lean) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            replies = []
            for headers in ("X-Request-Id: mine\r\n", CLOSE):
                writer.write(request(headers=headers))
                replies.append(await read_reply(reader))
            assert await reader.read() == b""
            assert [reply.status for reply in replies] == [200, 200]
            assert json.loads(replies[0].body)["outputs"][0]["data"] == [12, 14, 16, 18]
            assert replies[0].headers[b"x-request-id"] == b"mine"
            assert replies[1].headers[b"x-request-id"] not in (b"", b"mine")
            assert replies[0].headers[b"date"].endswith(b"GMT")
            assert b"connection" not in replies[0].headers
            assert replies[1].headers[b"connection"] == b"close"
            assert server.state.total_requests == 2

    bench.run(use)
    assert len(cycles) == 2


@pytest.mark.parametrize("pieces", [None, 1, 7])
def test_infer__body_in_parts_or_chunks__is_answered(
    bench: Bench, cycles: Lean, pieces: int | None
) -> None:
    async def use(server: Listening) -> None:
        for content in (request(headers=CLOSE), CHUNKED):
            async with connected(server) as (reader, writer):
                for start in range(0, len(content), pieces or len(content)):
                    writer.write(content[start : start + (pieces or len(content))])
                    await asyncio.sleep(0)
                reply = await read_reply(reader)
                assert json.loads(reply.body)["outputs"][0]["data"] == [12, 14, 16, 18]

    bench.run(use)
    assert len(cycles) == 2


def test_infer__upgrade_follows__is_answered(bench: Bench) -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

    async def use(server: Listening) -> None:
        replies = await talk(server, request() + request(headers=upgrade))
        assert [reply.status for reply in replies] == [200, 400]

    bench.run(use)


@pytest.mark.parametrize(
    "content",
    [
        b"HEAD /v2/health/live HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
        request("/v2", b"", headers=CLOSE + "Upgrade: h2c\r\n").replace(b"POST", b"GET"),
    ],
)
def test_request__not_for_inference__goes_to_the_application(
    bench: Bench, cycles: Lean, content: bytes
) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(content)
            answer = await reader.read()
            assert b"HTTP/1.1 200 OK\r\n" in answer

    bench.run(use)
    assert not cycles


@pytest.mark.parametrize(
    "target",
    [f"{INFER}?a=b", f"{INFER}/", INFER.replace("tiny", "%74iny"), f"http://test{INFER}"],
)
def test_infer__path_in_another_spelling__is_answered(
    bench: Bench, cycles: Lean, target: str
) -> None:
    async def use(server: Listening) -> None:
        replies = await talk(server, request(target) + request(headers=CLOSE))
        assert [reply.status for reply in replies] == [200, 200]

    bench.run(use)
    assert len(cycles) == 2


def test_infer__http_1_0__is_answered_with_close(bench: Bench, cycles: Lean) -> None:
    async def use(server: Listening) -> None:
        (reply,) = await talk(server, request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert reply.status == 200
        assert reply.headers[b"connection"] == b"close"

    bench.run(use)
    assert len(cycles) == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_body__above_the_limit__is_rejected_while_it_arrives(
    bench: Bench, cycles: Lean, chunked: bool
) -> None:
    large = b" " * (LIMIT * 5)
    if chunked:
        head = f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        content = head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)
    else:
        content = request(body=large)

    async def use(server: Listening) -> None:
        replies = await talk(server, content + request(headers=CLOSE))
        assert [reply.status for reply in replies] == [413, 200]

    before = bench.counted("payload_too_large")
    bench.run(use)
    assert len(cycles) == 2
    assert bench.counted("payload_too_large") == before + 1


def test_body__rest_of_a_rejected_one__has_a_time_limit(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(request(body=b" " * LIMIT * 2)[:-1])
            assert (await read_reply(reader)).status == 413
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await read_reply(reader)

    bench.run(use, drain_seconds=0.05)


def test_body__does_not_come__is_answered_504(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.inference, "seconds", 0.05)

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(request()[:-1])
            reply = await read_reply(reader)
            assert (reply.status, json.loads(reply.body)["code"]) == (504, "deadline_exceeded")

    bench.run(use)


def test_body__deadline_after_its_rejection__answers_nothing_more(
    bench: Bench, cycles: Lean
) -> None:
    """Its answer would be taken for that of the connection's next request."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(head.encode() + b"1\r\n \r\n")
            await until(lambda: cycles and cycles[0]._timer is not None)
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT, bytes(LIMIT)))
            assert (await read_reply(reader)).status == 413
            assert cycles[0]._timer is not None
            assert cycles[0]._timer.cancelled()
            writer.write(request(headers=CLOSE))
            assert (await read_reply(reader)).status == 200
            assert await reader.read() == b""

    bench.run(use)


def test_cancel__client_disconnects__request_is_withdrawn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = never(bench.host, monkeypatch)

    async def use(server: Listening) -> None:
        for hard in (False, True):
            client = socket.create_connection(("127.0.0.1", server.port))
            if hard:  # a reset instead of an orderly end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(request())
            await until(lambda: requests)
            client.close()
            await until(requests[-1].cancelled)
            requests.clear()

    before = bench.counted("gone")
    bench.run(use)
    assert bench.counted("gone") == before + 2


@pytest.mark.parametrize("path", [INFER, INFER.replace("tiny", "t%69ny")], ids=["plain", "escaped"])
def test_cancel__client_disconnects__pipelined_requests_are_withdrawn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    requests = never(bench.host, monkeypatch)

    async def use(server: Listening) -> None:
        async with connected(server) as (_, writer):
            writer.write(request(path) * 3)
            await until(lambda: requests)
            for connection in list(server.state.connections):
                connection.transport.abort()
            await until(requests[-1].cancelled)

    bench.run(use)


def test_client__ends_its_sending_half__is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = never(bench.host, monkeypatch)

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(request())
            await until(lambda: requests)
            writer.write_eof()
            await until(requests[0].cancelled)
            assert await reader.read() == b""

    before = bench.counted("gone")
    bench.run(use)
    assert bench.counted("gone") == before + 1


def test_error__unexpected__shows_no_internals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = never(bench.host, monkeypatch)

    async def use(server: Listening) -> None:
        for cancelled in (False, True):
            talking = asyncio.ensure_future(talk(server, request(headers=CLOSE)))
            await until(lambda: requests)
            if cancelled:
                requests[0].cancel()
            else:
                requests[0].set_exception(RuntimeError("/srv/secret"))
            (reply,) = await talking
            assert reply.status == 500
            assert b"secret" not in reply.body
            requests.clear()

    bench.run(use)


def test_shutdown__request_in_flight__is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer = bench.host.infer
    requests = never(bench.host, monkeypatch)

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer), connected(server) as (idle, _):
            writer.write(request())
            await until(lambda: requests and len(server.state.connections) == 2)
            for connection in list(server.state.connections):
                connection.shutdown()
            assert await idle.read() == b""
            requests[0].set_result(await infer(ROW, 10.0))
            assert (await read_reply(reader)).headers[b"connection"] == b"close"
            assert await reader.read() == b""

    bench.run(use)
