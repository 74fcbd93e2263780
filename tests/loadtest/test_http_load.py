"""The HTTP sender against a server with scripted answers."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from mlctl.loadtest.http_load import CONNECTION_LOST, HttpTarget

OK = b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=1.5\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
BODY = b'{"error": "full", "code": "queue_full"}'
FULL = b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
PLAIN = b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
BROKEN = b"nonsense\r\n\r\n"


Ended = asyncio.Future[tuple[str, bytes]]


def settle(done: Ended, outcome: str, timing: bytes) -> None:
    done.set_result((outcome, timing))


async def outcomes(*answers: bytes) -> tuple[list[tuple[str, bytes]], list[bytes], int]:
    """Return the outcome of each request, the requests in order, and the number of connections."""
    remaining, received, connections = list(answers), list[bytes](), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while remaining:
            try:
                received.append(await reader.readexactly(1))
            except asyncio.IncompleteReadError:
                break
            answer = remaining.pop(0)
            if not answer:
                break
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = await HttpTarget("127.0.0.1", port, (b"a", b"b")).connect()
    found = []
    for _ in answers:
        done: Ended = asyncio.get_running_loop().create_future()
        sender.send(partial(settle, done))
        found.append(await asyncio.wait_for(done, 10))
    sender.close()
    server.close()
    await server.wait_closed()
    return found, received, connections


def test_http_sender__answers_and_errors__are_reported_in_turn() -> None:
    found, received, connections = asyncio.run(outcomes(OK, CHUNKED, FULL, PLAIN))
    assert found == [
        ("ok", b"queue;dur=1.5"), ("ok", b""), ("503 queue_full", b""), ("502", b"")
    ]  # fmt: skip
    assert received == [b"a", b"b", b"a", b"b"]
    assert connections == 1


@pytest.mark.parametrize(
    ("answer", "outcome"), [(LAST, "ok"), (b"", CONNECTION_LOST), (BROKEN, CONNECTION_LOST)]
)
def test_http_sender__closed_connection__is_reopened(answer: bytes, outcome: str) -> None:
    found, _, connections = asyncio.run(outcomes(answer, OK))
    assert [each[0] for each in found] == [outcome, "ok"]
    assert connections == 2


async def test_http_sender__stopped_server__is_a_lost_connection() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = await HttpTarget("127.0.0.1", port, (b"a",)).connect()
    server.close()
    await server.wait_closed()
    for _ in range(2):
        done: Ended = asyncio.get_running_loop().create_future()
        sender.send(partial(settle, done))
        assert (await asyncio.wait_for(done, 10))[0] == CONNECTION_LOST
    sender.close()
