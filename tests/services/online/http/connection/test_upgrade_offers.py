"""Offers to change the protocol, which are answered as if they had not been made."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.services.online.http.connection.conftest import BODY, INFER, Bench, read_reply, request
from tests.support.listening import Listening

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
OTHER = "Connection: keep-alive, upgrade\r\nUpgrade: TLS/1.0, other\r\n"
CHUNKED = (
    f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n{H2C}\r\n"
    f"{len(BODY):x}\r\n".encode()
    + BODY
    + b"\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("pieces", [3, 50, 10_000])
def test_upgrade__offered__is_ignored(bench: Bench, pieces: int) -> None:
    content = request(headers=H2C) + request() + CHUNKED + request(headers=OTHER)
    content += b"GET /v2 HTTP/1.1\r\nHost: test\r\n" + H2C.encode() + b"\r\n"
    content += request(headers="Connection: close, Upgrade\r\nUpgrade: h2c\r\n")

    async def use(server: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for start in range(0, len(content), pieces):
            writer.write(content[start : start + pieces])
            await asyncio.sleep(0)
        replies = [await read_reply(reader) for _ in range(6)]
        assert [reply.status for reply in replies] == [200] * 6
        answers = [json.loads(replies[number].body)["outputs"] for number in (0, 1, 2, 3, 5)]
        assert [outputs[0]["data"] for outputs in answers] == [[12, 14, 16, 18]] * 5
        assert await reader.read() == b""
        writer.close()

    bench.run(use)


def test_connect__tunnel__is_not_answered_200(bench: Bench) -> None:
    async def use(server: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nHost: test\r\n\r\n")
        writer.write_eof()
        async with asyncio.timeout(30):
            assert b"HTTP/1.1 200" not in await reader.read()
        writer.close()

    bench.run(use)
