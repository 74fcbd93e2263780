"""Infer requests that wait for others of their connection, or for 100 Continue."""

from __future__ import annotations

import json

import pytest

from tests.services.online.http.connection.conftest import (
    BODY,
    INFER,
    LIMIT,
    Bench,
    read_reply,
    request,
)
from tests.services.online.http.connection.test_protocol import (
    CLOSE,
    ROW,
    Lean,
    connected,
    never,
    talk,
)
from tests.support.listening import Listening, until


def test_pipelining__several_requests__are_answered_in_order(bench: Bench, cycles: Lean) -> None:
    bodies = [BODY.replace(b"[1, 2, 3, 4]", b"[%d, 0, 0, 0]" % number) for number in range(5)]
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
    content = request(body=bodies[0]) + live + request(body=bodies[1]) + request("/v2/models/x")
    content += b"".join(request(body=body) for body in bodies[2:4])
    content += request(body=bodies[4], headers=CLOSE)

    async def use(server: Listening) -> None:
        found = [json.loads(reply.body) for reply in await talk(server, content)]
        first = [one["outputs"][0]["data"][1] if "outputs" in one else None for one in found]
        assert first == [0, None, 1, None, 2, 3, 4]
        assert found[1] == {"live": True}
        assert found[3]["code"] == "model_not_found"

    bench.run(use)
    assert len(cycles) == 5


def test_infer__expects_100_continue__gets_it_before_the_body(bench: Bench) -> None:
    expect = "Expect: 100-continue\r\n"
    head = request(headers=expect)[: -len(BODY)]

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            for _ in range(3):
                writer.write(head)
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(BODY)
                assert (await read_reply(reader)).status == 200
            # Behind another request, and all at once.
            writer.write(request() + request(headers=expect) + request(headers=expect + CLOSE))
            assert [(await read_reply(reader)).status for _ in range(3)] == [200] * 3
            assert await reader.read() == b""

    bench.run(use)


def test_infer__rejected_client_expects_100_continue__ends_the_connection(bench: Bench) -> None:
    """The client may not send the body, and the server would read its next request as the body."""
    head = request(headers="Expect: 100-continue\r\nContent-Type: text/csv\r\n")[: -len(BODY)]

    async def use(server: Listening) -> None:
        (reply,) = await talk(server, head)
        assert (reply.status, reply.headers[b"connection"]) == (415, b"close")

    bench.run(use)


def test_infer__many_pipelined_and_rejected__are_answered_in_order(bench: Bench) -> None:
    wrong = request(headers="Content-Type: text/csv\r\n", body=b"")
    count = 1000

    async def use(server: Listening) -> None:
        replies = await talk(server, request() + wrong * count + request(headers=CLOSE))
        assert [reply.status for reply in replies] == [200, *[415] * count, 200]

    bench.run(use)


def test_infer__pipelined_body_is_too_large__is_rejected_in_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer = bench.host.infer
    asked = never(bench.host, monkeypatch)
    chunk = b"%x\r\n%b\r\n" % (LIMIT + 1, bytes(LIMIT + 1))
    head = f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode()

    async def use(server: Listening) -> None:
        async with connected(server) as (reader, writer):
            writer.write(request() + head + chunk + b"0\r\n\r\n" + request(headers=CLOSE))
            await until(lambda: asked)
            asked[0].set_result(await infer(ROW, 10.0))
            assert [(await read_reply(reader)).status for _ in range(2)] == [200, 413]
            await until(lambda: len(asked) == 2)
            asked[1].set_result(await infer(ROW, 10.0))
            assert (await read_reply(reader)).status == 200
        await until(lambda: bench.host.inflight.used == 0)

    bench.run(use)
