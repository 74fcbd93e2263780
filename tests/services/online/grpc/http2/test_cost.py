"""What a known call costs, in calls of the interpreter: the same on every machine, at any load."""

from __future__ import annotations

import asyncio
import sys
from math import inf
from types import FrameType
from typing import Any

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from bundle.clock import ManualClock
from bundle.verify import VerifiedBundle
from services.online.batching.admission import QueueFullError, Shut
from services.online.grpc.http2 import frames
from services.online.grpc.http2.frames import frame
from services.online.grpc.http2.hpack import encode
from services.online.grpc.server import GrpcServer
from services.online.models.served_model import ServedModel
from services.online.settings import ServerSettings
from services.protocol.priority import Priority
from tests.services.online.grpc.http2.conftest import framed, head, infer_message
from tests.support import wires
from tests.support.wires import Wire

HELLO = frames.PREFACE + frame(frames.SETTINGS, 0, 0)
BLOCK = encode(tuple(head()))
BODY = framed(infer_message().SerializeToString())
OK, REFUSED = (encode(((b"grpc-status", number),)) for number in (b"0", b"8"))
# What waits for the answers is not the server's.
OTHERS = (__file__, wires.__file__, asyncio.tasks.__file__)
TURNS = 8


def request(stream: int) -> bytes:
    """A call as gRPC's own clients send it."""
    asked = frame(frames.HEADERS, frames.END_HEADERS, stream, BLOCK)
    asked += frame(frames.WINDOW_UPDATE, 0, stream, frames.NUMBER.pack(5))
    return asked + frame(frames.DATA, frames.END_STREAM, stream, BODY)


async def ask(connections: list[tuple[Any, Wire]], stream: int, ending: bytes) -> None:
    """Ask once on each of `connections` in one turn of the loop, and wait for every answer.

    It ends with the block `ending`; without one it is a refusal.
    """
    data = request(stream)
    for connection, _ in connections:
        connection.data_received(data)
    async with asyncio.timeout(60):
        while not all(wire.sent for _, wire in connections):  # noqa: ASYNC110 - turns count
            await asyncio.sleep(0)
    for _, wire in connections:
        # After the first of all, which is made another way, one write for each answer.
        sent = b"".join(wire.sent)
        last = frame(frames.HEADERS, 5, stream, b"")[3:]
        assert sent.endswith(last + ending) if ending else sent[3:].startswith(last)
        assert ending or REFUSED in sent
        assert len(wire.sent) == 1 or stream == 1
        assert not wire.closed
        wire.sent.clear()


def fill(host: ServedModel) -> None:
    """Let nobody in who is like those that ask here."""
    policy: Any = host._batching._policy  # type: ignore[union-attr]
    error = QueueFullError(8, 8, 2.3, wait=2.3)

    def full(*_: object) -> None:
        policy._shut = Shut(1, Priority.NORMAL, inf, error)
        raise error

    policy.offer = full


async def calls(host: ServedModel, count: int, *, refused: bool = False) -> float:
    """The calls that each of `count` infer calls costs which come at the same time."""
    server: Any = GrpcServer(host, "127.0.0.1", 0)._server
    connections: list[tuple[Any, Wire]] = [(server._connect(), Wire()) for _ in range(count)]
    for connection, wire in connections:
        connection.connection_made(wire)
        connection.data_received(HELLO)
    await asyncio.sleep(0)
    for _, wire in connections:
        wire.sent.clear()
    found = 0
    for stream in (1, 3):
        await ask(connections, stream, OK)
    if refused:
        fill(host)
    ending = b"" if refused else OK
    await ask(connections, 5, ending)

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event in ("call", "c_call") and frame.f_code.co_filename not in OTHERS

    sys.setprofile(note)
    try:
        for turn in range(TURNS):
            await ask(connections, 7 + 2 * turn, ending)
    finally:
        sys.setprofile(None)
    for connection, _ in connections:
        connection.connection_lost(None)
    await server.stop(0)
    return found / TURNS / count


@pytest.mark.parametrize(
    ("count", "refused", "bound"), [(1, False, 290), (64, False, 97), (64, True, 55)]
)
def test_a_known_call_costs_no_more(
    shared_bundle: VerifiedBundle, count: int, refused: bool, bound: float
) -> None:
    async def main() -> float:
        # By this clock every batch takes no time, so that what is learned is the same, too.
        registry = CollectorRegistry()
        host = ServedModel(shared_bundle, ServerSettings(), clock=ManualClock(), registry=registry)
        await host.start()
        try:
            return await calls(host, count, refused=refused)
        finally:
            await host.stop()

    first, second = uvloop.run(main()), uvloop.run(main())
    assert first == pytest.approx(second, abs=0.5)
    assert first <= bound
