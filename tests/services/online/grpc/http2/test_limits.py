"""What a client can make a server hold, or do, before it has asked for anything."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from h2 import events
from h2.errors import ErrorCodes

from mlctl.services.online.batching.admission import Inflight
from mlctl.services.online.grpc.http2.head import parse_head
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from tests.services.online.grpc.http2.conftest import (
    EMPTY,
    INFER,
    LIVE,
    Fields,
    Raw,
    Serve,
    framed,
    head,
)
from tests.services.online.grpc.http2.test_connection import FLOOD, counted
from tests.support.listening import until

CHECK = b"/grpc.health.v1.Health/Check"
WATCH = b"/grpc.health.v1.Health/Watch"
REFLECTION = b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def test_limits__open_calls_without_a_message__are_charged(serve: Serve) -> None:
    """Whoever holds all of it keeps nobody from asking whether the server lives."""

    each = (8 << 10) + parse_head(tuple(head())).size

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        http2: Any = server._server
        room = http2._room = Inflight(200_000)
        raw = await Raw.open(server.port)
        opened = [raw.ask(head(), None, end=False) for _ in range(40)]
        refused = (await raw.trailers(opened[-1]))[b"grpc-status"]
        assert refused == b"8"
        assert raw.of(events.TrailersReceived, opened[0]) == []
        assert room.used == 200_000 // each * each
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        raw.close()
        await until(lambda: not room.used)

    assert counted(serve(use), "queue_full") == 40 - 200_000 // each


def test_limits__health_watches__have_their_own_budget(serve: Serve) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        for _ in range(50):
            raw.ask(head(WATCH), EMPTY)
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        http2: Any = server._server
        assert http2._room.used == host.inflight.used == 0
        assert http2._probes.used > 50 << 13
        raw.close()
        await until(lambda: not http2._probes.used)

    serve(use)


def test_flood__heads_of_very_many_fields__end_the_connection(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        for call in range(200):
            fields: Fields = [(b"x-%d-%d" % (call, number), b"") for number in range(300)]
            raw.ask(head(b"/nothing", *fields), EMPTY)
        # The reset of a connection with unread bytes can overtake the GOAWAY.
        assert await raw.ended() in (ErrorCodes.ENHANCE_YOUR_CALM, None)
        raw.close()

    serve(use)
    assert [record.message[: len(FLOOD)] for record in caplog.records] == [FLOOD]


def test_call__invalid_metadata__fails_alone(serve: Serve, tmp_path: Path) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        wrong = head(INFER, (b"trace-bin", b"a"))
        assert (await raw.trailers(raw.ask(wrong, framed(b"x" * 12_000))))[b"grpc-status"] == b"8"
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        raw.close()

    serve(use, max_body_bytes=10_000, access_log=str(tmp_path / "log"))


def test_call__invalid_message__is_rejected_without_a_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may send them: a log must not grow by a traceback for each."""

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        for path in (CHECK, WATCH, REFLECTION):
            status = await raw.trailers(raw.ask(head(path), framed(b"\xff")))
            assert status[b"grpc-status"] == b"3"
        raw.close()

    serve(use)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_listener__backlog__is_that_of_http(serve: Serve) -> None:
    kernel = int(Path("/proc/sys/net/core/somaxconn").read_text())

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        listener: socket.socket = cast("Any", server)._server._listeners[0][0]
        # struct tcp_info has it in tcpi_sacked; it begins with 8 bytes and 5 numbers.
        about = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        most = int.from_bytes(about[28:32], sys.byteorder)
        assert most == min(2048, kernel)

    serve(use)
