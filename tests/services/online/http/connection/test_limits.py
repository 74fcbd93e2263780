"""Clients that are slow, endless or wrong, on raw connections with short limits."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from mlctl.services.online.http.connection.limits import LimitedProtocol
from tests.services.online.http.connection.conftest import BODY, INFER, Bench, read_reply, request
from tests.services.online.http.connection.test_protocol import CLOSE, ROW, connected, never, talk
from tests.support.listening import Listening, until

HEAD = f"POST {INFER} HTTP/1.1\r\nHost: test\r\n".encode()
GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
LARGE = 8 << 20


async def closed_without_answer(server: Listening, content: bytes) -> None:
    async with connected(server) as (reader, writer):
        writer.write(content)
        assert await reader.read() == b""


def test_head__does_not_come_in_time__is_answered_408(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        (late,) = await talk(server, HEAD)
        assert late.status == 408
        await closed_without_answer(server, b"")
        await closed_without_answer(server, b"\r\n\r\n")

    bench.run(use, head_seconds=0.05)


def test_blank_lines__on_an_idle_connection__do_not_keep_it(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(request())
            assert (await read_reply(reader)).status == 200
            writer.write(b"\r\n")
            assert await reader.read() == b""

    bench.run(use, head_seconds=0.05, idle_seconds=0.5)


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"".join(b"X-%d: 1\r\n" % number for number in range(200)) + b"\r\n",
        HEAD + b"X: " + b"a" * 300_000,
        b"POST /" + b"a" * 300_000,
    ],
)
def test_head__above_the_limit__is_answered_431(bench: Bench, head: bytes) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            for start in range(0, len(head), 10_000):
                writer.write(head[start : start + 10_000])
                await asyncio.sleep(0)
            assert (await read_reply(reader)).status == 431

    bench.run(use)


@pytest.mark.parametrize("path", [INFER, "/v2", f"/v2?{'a' * 66_000}"])
def test_head__large_in_one_read__is_answered_431(bench: Bench, path: str) -> None:
    async def use(server: Listening) -> None:
        (reply,) = await talk(server, request(path, headers=f"X: {'a' * 66_000}\r\n"))
        assert reply.status == 431
        allowed = request(headers=f"X: {'a' * 60_000}\r\n") + request(headers=CLOSE)
        assert [reply.status for reply in await talk(server, allowed)] == [200, 200]

    bench.run(use)


@pytest.mark.parametrize("target", ["http://", "http://test:99999999/v2"])
def test_target__invalid__is_answered_400(bench: Bench, target: str) -> None:
    async def use(server: Listening) -> None:
        (reply,) = await talk(server, f"GET {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        assert reply.status == 400

    bench.run(use)


@pytest.mark.parametrize(
    ("line", "hosts", "status"),
    [
        ("POST /v2/models/tiny/infer HTTP/1.1", 0, 400),
        ("POST /v2/models/tiny/infer HTTP/1.1", 2, 400),
        ("POST /v2/models/tiny/infer HTTP/1.0", 2, 400),
        ("POST /v2/models/tiny/infer HTTP/1.0", 0, 200),
        ("GET /v2 HTTP/1.1", 0, 400),
        ("GET /v2 HTTP/1.1", 2, 400),
        ("GET /v2 HTTP/1.1", 1, 200),
        ("GET /v2 HTTP/1.0", 0, 200),
    ],
)
def test_host__missing_or_doubled__is_rejected(
    bench: Bench, line: str, hosts: int, status: int
) -> None:
    body = BODY if line.startswith("POST") else b""
    lines = [line, *["host: test"] * hosts, "Connection: close", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, "", ""])

    async def use(server: Listening) -> None:
        (reply,) = await talk(server, head.encode() + body)
        assert reply.status == status

    bench.run(use)


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"], 431),
        ([b"GET http:// HTTP/1.1\r\n\r\n"], 400),
        ([HEAD + b"Bad Name: 1\r\n\r\n"], 400),
        ([HEAD, b"X: " + b"a" * 70_000 + b"\r\nBad Name: 1\r\n\r\n"], 400),
        ([HEAD], 408),
    ],
)
def test_head__broken__is_rejected_once(bench: Bench, pieces: list[bytes], status: int) -> None:
    refused: list[int] = []
    wrong: list[object] = []

    def receive(protocol: LimitedProtocol, transport: asyncio.Transport) -> None:
        LimitedProtocol.connection_made(protocol, transport)
        for piece in pieces:
            protocol.data_received(piece)  # in reads of these sizes, and in time

    def note(_: object, status: int) -> None:
        refused.append(status)

    async def use(server: Listening) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        async with connected(server) as (reader, _):
            assert (await read_reply(reader)).status == status
            # It stays, for longer than a head may take, until the server has had enough.
            await until(lambda: not server.state.connections)

    limits = {"head_seconds": 0.05, "drain_seconds": 0.2}
    bench.run(use, **limits, connection_made=receive, note_rejection=note)
    assert (refused, wrong) == ([status], [])


def test_error__earlier_request_is_running__comes_after_its_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer = bench.host.infer
    asked = never(bench.host, monkeypatch)

    async def use(server: Listening) -> None:
        for rest in (b"\x00\x01garbage\r\n\r\n", HEAD + b"no header\r\n\r\n"):
            talking = asyncio.ensure_future(talk(server, request() + rest))
            await until(lambda: asked)
            asked[0].set_result(await infer(ROW, 10.0))
            assert [reply.status for reply in await talking] == [200, 400]
            asked.clear()

    bench.run(use)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x01\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Bad Name: 1\r\n\r\n",
    ],
)
def test_http__invalid__is_answered_400_once(bench: Bench, content: bytes) -> None:
    async def use(server: Listening) -> None:
        (reply,) = await talk(server, content)
        assert reply.status == 400

    bench.run(use)


def test_chunks__invalid_after_a_rejection__get_no_second_answer(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        head = HEAD + b"Content-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with connected(server) as (reader, writer):
            writer.write(head)
            assert (await read_reply(reader)).status == 415
            writer.write(b"zz\r\n")
            assert await reader.read() == b""

    bench.run(use)


@pytest.mark.parametrize("piece", [b"a" * 65536, b"a: b\r\n" * 10923])
@pytest.mark.parametrize("path", [INFER, "/v2/models/tiny/infer?a"])
def test_trailers__above_the_limit__are_answered_400(bench: Bench, piece: bytes, path: str) -> None:
    async def use(server: Listening) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with connected(server) as (reader, writer):
            writer.write(head.encode() + b"1\r\n{\r\n0\r\na: ")
            for _ in range(4):
                writer.write(piece)
            assert (await read_reply(reader)).status == 400
            assert await reader.read() == b""

    bench.run(use)


@pytest.mark.parametrize("path", [INFER, "/v2/models/tiny/infer?a"])
def test_body__broken__is_answered_400_and_counted(bench: Bench, path: str) -> None:
    async def use(server: Listening) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with connected(server) as (reader, writer):
            writer.write(head.encode())
            writer.write(b"zz\r\n")
            assert (await read_reply(reader)).status == 400
            await until(lambda: bench.counted("gone") == before + 1)

    before = bench.counted("gone")
    bench.run(use)


async def large(_scope: Any, _receive: Any, send: Any) -> None:
    """An application with a large answer."""
    headers = [(b"content-length", b"%d" % LARGE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


class Hasty(LimitedProtocol):
    stall_seconds = 0.1


@pytest.mark.parametrize("content", [GET * 2, GET[:-2] + CLOSE.encode() + b"\r\n"])
def test_answer__client_does_not_read__connection_ends(bench: Bench, content: bytes) -> None:
    async def use(server: Listening) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(content)
            await until(lambda: server.state.connections)
            await until(lambda: not server.state.connections)

    bench.serve(Hasty, use, large)


class Patient(LimitedProtocol):
    stall_seconds = 1.0


def test_response__reader_is_slow_but_never_stalls__is_complete(bench: Bench) -> None:
    """Reading takes longer than a client may stall, in pauses that are far shorter."""

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n" + CLOSE.encode() + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            left, started = LARGE, time.monotonic()
            while left:
                piece = await reader.read(1 << 18)
                assert piece, f"the connection ended {left} bytes early"
                left -= len(piece)
                await asyncio.sleep(0.03)
            assert time.monotonic() - started > Patient.stall_seconds
            assert await reader.read() == b""

    bench.serve(Patient, use, large)


def test_connections__above_the_limit__are_answered_503(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        async with connected(server), connected(server) as (reader, writer):
            await until(lambda: len(server.state.connections) == 2)
            (refused,) = await talk(server, request())
            assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
            assert refused.headers[b"connection"] == b"close"
            writer.write(request())
            assert (await read_reply(reader)).status == 200
        await until(lambda: not server.state.connections)
        (taken,) = await talk(server, request(headers=CLOSE))
        assert taken.status == 200

    bench.run(use, max_connections=2, rejection_seconds=0.1)


@pytest.mark.parametrize("content", [request(), GET])
def test_shutdown__request_arrives__is_answered_with_close(bench: Bench, content: bytes) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(request())
            assert (await read_reply(reader)).status == 200
            (connection,) = server.state.connections
            connection.shutdown()
            connection.shutdown()  # as often as it likes
            writer.write(content)
            last = await read_reply(reader)
            assert last.headers[b"connection"] == b"close"
            assert await reader.read() == b""

    bench.run(use)


def test_shutdown__idle_connection__is_closed(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        async with connected(server) as (reader, _):
            await until(lambda: server.state.connections)
            (connection,) = server.state.connections
            connection.shutdown()
            assert await reader.read() == b""

    bench.run(use, farewell_seconds=0.05)
