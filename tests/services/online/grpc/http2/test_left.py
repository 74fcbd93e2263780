"""However clients leave what they began, nothing of it stays counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from mlctl.services.online.grpc.http2.call import GrpcCall
from mlctl.services.online.grpc.http2.connection import Connection, Times
from mlctl.services.online.grpc.http2.outbox import Parking
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.protocol.messages import SERVICE
from tests.services.online.grpc.http2.conftest import EMPTY, INFER, LIVE, Raw, Serve, framed, head
from tests.services.online.grpc.http2.conftest import infer_message as message
from tests.support.listening import until
from tests.support.wires import Wire

PATHS = (
    INFER, INFER, INFER, LIVE, b"/nothing", f"/{SERVICE}/ModelStreamInfer".encode(),
    b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch",
    b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)  # fmt: skip
BODY = framed(message().SerializeToString())
BODIES = (BODY, BODY, framed(message(200).SerializeToString()), BODY[:7], EMPTY, None, BODY + BODY)
EXTRAS = (
    (), (), ((b"grpc-timeout", b"1m"),), ((b"grpc-timeout", b"0n"),), ((b"grpc-timeout", b"x"),),
    ((b"mlctl-priority", b"high"),), ((b"mlctl-priority", b"none"),), ((b"trace-bin", b"a"),),
)  # fmt: skip
WINDOWS = (0, 1, 20, 1000, 65535, 65535)


async def wander(port: int, dice: random.Random) -> None:
    """One client, which is never sure what it wants, and takes only some of what it is sent."""
    raw = await Raw.open(port)
    raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: dice.choice(WINDOWS)})
    opened = list[int]()
    for _ in range(dice.randrange(1, 40)):
        # What the server has ended meanwhile takes nothing any more.
        with contextlib.suppress(H2Error, KeyError):
            await step(raw, opened, dice)
    if dice.random() < 0.5:
        raw.writer.transport.abort()
    else:
        raw.close()


async def step(raw: Raw, opened: list[int], dice: random.Random) -> None:
    """Ask, go on with or reset what was asked, or listen."""
    what = dice.randrange(10)
    if what < 6 or not opened:
        fields = head(dice.choice(PATHS), *dice.choice(EXTRAS))
        stream = raw.ask(fields, dice.choice(BODIES), end=dice.random() < 0.7)
        opened.append(stream)
    elif what < 8:
        raw.core.send_data(dice.choice(opened), BODY, end_stream=dice.random() < 0.5)
        raw.flush()
    elif what < 9:
        raw.core.reset_stream(opened.pop(dice.randrange(len(opened))), 8)
        raw.flush()
    elif not raw.closed:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await raw.receive()


@pytest.mark.parametrize("seed", range(3))
def test_connections__clients_leave_in_any_way__nothing_stays_counted(
    serve: Serve, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    dice = random.Random(seed)

    async def use(server: GrpcServer, host: ServedModel) -> None:
        http2: Any = server._server
        batching: Any = host._batching

        def counted() -> list[int]:
            budgets = (http2._room, http2._probes, host.inflight)
            others = (http2._parking.size, int(batching.has_open), server._health._watches)
            return [*(budget.used for budget in budgets), *others]

        for _ in range(3):
            clients = [random.Random(dice.random()) for _ in range(12)]
            await asyncio.gather(*(wander(server.port, each) for each in clients))
        await until(lambda: not http2._connections and not any(counted()))

    serve(use, deadline_ms=300)
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_connection__peer_reset_before_accept__is_aborted_without_error() -> None:
    """The kernel has no address for it any more, so the transport's `peername` is None."""

    async def accept() -> None:
        connections: set[Connection] = set()
        connection = Connection(_no_call, connections, 10, Times(), Parking(), _no_infer)
        wire = Wire(peername=None)
        connection.connection_made(wire)
        assert wire.closed
        connection.data_received(b"PRI * HTTP/2.0")
        connection.connection_lost(None)
        assert not connections
        assert not wire.sent

    asyncio.run(accept())


def _no_infer(*_args: object) -> bool:
    raise AssertionError("no call is made")


def _no_call(*_args: object) -> GrpcCall:
    raise AssertionError("no call is made")
