"""What HTTP/2 allows a client, kindly or not, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from typing import Any

import numpy as np
import pytest
from h2 import events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from prometheus_client import CollectorRegistry

from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.grpc.http2 import connection
from mlctl.services.online.grpc.http2.connection import Times
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.protocol.messages import SERVICE, methods
from tests.services.online.grpc.http2.conftest import (
    EMPTY,
    INFER,
    LIVE,
    Raw,
    Serve,
    X,
    framed,
    head,
    infer_message,
)
from tests.support.listening import until
from tests.support.models import replace_infer
from tests.support.wait import PATIENCE_SECONDS

STREAM = f"/{SERVICE}/ModelStreamInfer".encode()
GZIP = (b"grpc-encoding", b"gzip")
_GOAWAY = b"\0\0\x08\7\0\0\0\0\0"


def counted(registry: CollectorRegistry, outcome: str, protocol: str = "grpc") -> float | None:
    labels = {"model": "tiny", "protocol": protocol, "outcome": outcome}
    return registry.get_sample_value("mlctl_requests_total", labels)


def test_call__each_fault__has_its_status(serve: Serve) -> None:
    whole = infer_message().SerializeToString()
    cases: list[tuple[Any, bytes | None, bytes]] = [
        (head(), framed(whole), b"0"),
        (head(INFER, GZIP), framed(gzip.compress(whole), 1), b"0"),
        (head(INFER, GZIP), framed(whole), b"0"),
        (head(INFER, GZIP), framed(b"no gzip", 1), b"3"),
        (head(), framed(whole, 1), b"3"),
        (head(), framed(whole, 2), b"3"),
        (head(), framed(b"x" * 20_000), b"8"),
        (head(INFER, GZIP), framed(gzip.compress(bytes(1 << 20)), 1), b"8"),
        (head(INFER, (b"grpc-encoding", b"snappy")), framed(whole), b"12"),
        (head(b"/inference.GRPCInferenceService/Nothing"), framed(whole), b"12"),
        (head(INFER, (b"grpc-timeout", b"soon")), framed(whole), b"3"),
        (head(INFER, (b"grpc-timeout", b"0m")), framed(whole), b"4"),
        (head(), None, b"3"),
        (head(), b"", b"3"),
        (head(), framed(whole) + framed(whole), b"3"),
        (head(), framed(whole)[:-1], b"3"),
        (head(LIVE), EMPTY, b"0"),
    ]

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        for headers, body, expected in cases:
            found = await raw.trailers(raw.ask(headers, body))
            assert (found[b":status"], found[b"grpc-status"]) == (b"200", expected), headers
            assert found[b"content-type"] == b"application/grpc"
            assert b"gzip" in found[b"grpc-accept-encoding"]
        raw.close()

    serve(use, max_body_bytes=10_000)


def test_call__other_content_type_or_method__is_rejected(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        json = [*head()[:-1], (b"content-type", b"application/json")]
        for headers, status in ((json, b"415"), (head(method=b"GET"), b"405")):
            found = await raw.trailers(raw.ask(headers, EMPTY))
            assert found[b":status"] == status
        malformed = raw.ask([*head(), (b"connection", b"close")], EMPTY)
        await raw.until(lambda: raw.of(events.StreamReset, malformed))
        assert raw.of(events.StreamReset)[0].error_code == ErrorCodes.PROTOCOL_ERROR
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        raw.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()

    serve(use)


@pytest.mark.parametrize("size", [64_000, 8 << 20])
def test_call__large_message__passes_the_windows(serve: Serve, size: int) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        rows = size // X.nbytes
        body = framed(infer_message(rows).SerializeToString())
        stream = raw.ask(head(), b"", end=False)
        while body:
            room = min(raw.core.local_flow_control_window(stream), raw.core.max_outbound_frame_size)
            if room:
                raw.core.send_data(stream, body[:room], end_stream=len(body) <= room)
                body = body[room:]
                raw.flush()
            else:
                await raw.receive()
        status = (await raw.trailers(stream))[b"grpc-status"]
        assert host.inflight.used == 0
        answer = b"".join(event.data for event in raw.of(events.DataReceived, stream))
        if size > 1 << 20:
            assert (status, answer) == (b"8", b"")  # it came whole, and has too many rows
        else:
            message = methods()["ModelInfer"].response.FromString(answer[5:])
            assert status == b"0"
            assert np.frombuffer(message.raw_output_contents[0], "<f4")[rows * 4 - 1] == 18
        raw.close()

    serve(use)


def test_call__tiny_client_windows__whole_answers_in_turns(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
        raw.flush()
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        body = framed(infer_message().SerializeToString())
        streams = [raw.ask(head(), body) for _ in range(3)]
        seen = 0
        while len(raw.of(events.StreamEnded)) < len(streams):
            found = raw.of(events.DataReceived)
            for event in found[seen:]:
                assert len(event.data) <= 10
                raw.core.increment_flow_control_window(10)
                if not raw.of(events.StreamEnded, event.stream_id):
                    raw.core.increment_flow_control_window(10, event.stream_id)
            seen = len(found)
            raw.flush()
            await raw.receive()
        sizes = {sum(len(e.data) for e in raw.of(events.DataReceived, s)) for s in streams}
        assert len(sizes) == 1
        assert sizes.pop() > 30
        raw.close()

    serve(use)


def test_deadline__client_takes_no_answer__stream_is_reset(serve: Serve) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        raw.flush()
        stream = raw.ask(head(), framed(infer_message().SerializeToString()))
        await raw.until(lambda: raw.of(events.StreamReset, stream))
        assert host.inflight.used == 0
        raw.close()

    serve(use, deadline_ms=200)


def test_deadline__message_is_incomplete__call_fails(serve: Serve) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        late = raw.ask(head(), framed(b"x" * 50)[:20], end=False)
        assert (await raw.trailers(late))[b"grpc-status"] == b"4"
        assert host.inflight.used == 0
        # What it still sends is not wanted.
        raw.core.send_data(late, b"x")
        raw.flush()
        await raw.until(lambda: raw.of(events.StreamReset, late))
        assert raw.of(events.StreamReset)[0].error_code == ErrorCodes.NO_ERROR
        raw.close()

    serve(use, deadline_ms=200)


def test_reset__call_is_running__request_is_withdrawn(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        asked: list[asyncio.Future[Answer]] = []

        def never(*_arguments: Any) -> asyncio.Future[Answer]:
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        replace_infer(monkeypatch, host, never)
        raw = await Raw.open(server.port)
        body = framed(infer_message().SerializeToString())
        first, _ = raw.ask(head(), body), raw.ask(head(), body)
        await until(lambda: len(asked) == 2)
        raw.core.reset_stream(first, ErrorCodes.CANCEL)
        raw.flush()
        await until(asked[0].cancelled)
        assert not asked[1].done()
        raw.close()
        await until(asked[1].cancelled)
        await until(lambda: not host.inflight.used)

    assert counted(serve(use), "gone") == 2


@pytest.mark.parametrize("known", [b"", framed(infer_message().SerializeToString())])
def test_deadline__message_of_a_stream_is_incomplete__stream_fails(
    serve: Serve, known: bytes
) -> None:
    """Else each stream would hold its share of what is in flight for ever."""

    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        late = raw.ask(head(STREAM), known + framed(b"x" * 50)[:20], end=False)
        assert (await raw.trailers(late))[b"grpc-status"] == b"4"
        assert len(raw.of(events.DataReceived, late)) == bool(known)
        assert host.inflight.used == 0
        raw.close()

    serve(use, deadline_ms=200)


def test_deadline__client_takes_no_part_of_a_stream__stream_ends(serve: Serve) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        raw.flush()
        stream = raw.ask(head(STREAM), framed(infer_message().SerializeToString()), end=False)
        await raw.until(lambda: raw.of(events.StreamReset, stream))
        await until(lambda: not host.inflight.used)
        raw.close()

    assert counted(serve(use, deadline_ms=200), "gone") == 1


FLOOD = "a client floods its connection"


@pytest.mark.parametrize("kind", ["ping", "settings", "reset", "empty"])
def test_flood__of_each_frame__ends_the_connection(
    serve: Serve, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PER_SECOND", 0.0)  # else a slow machine forgives the frames

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        stream = raw.ask(head(), b"", end=False)
        for _ in range(12_000 if kind == "reset" else 3000):
            if kind == "ping":
                raw.core.ping(b"12345678")
            elif kind == "settings":
                raw.writer.write(b"\0\0\0\4\0\0\0\0\0")
            elif kind == "empty":
                raw.core.send_data(stream, b"")
            else:
                opened = raw.ask(head(), b"", end=False)
                raw.core.reset_stream(opened)
        raw.flush()
        # The reset of a connection with unread bytes can overtake the GOAWAY.
        assert await raw.ended() in (ErrorCodes.ENHANCE_YOUR_CALM, None)
        again = await Raw.open(server.port)
        assert (await again.trailers(again.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        again.close()
        raw.close()

    serve(use)
    assert [record.message[: len(FLOOD)] for record in caplog.records] == [FLOOD]


@pytest.mark.parametrize(("end", "proxied"), [(True, False), (False, False), (True, True)])
def test_resets__of_many_calls__keep_the_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, *, end: bool, proxied: bool
) -> None:
    """And of any number, where it is a proxy's: one of its clients must not end it for all."""
    if proxied:
        monkeypatch.setattr(connection, "CAPACITY", 100.0)  # of 800 cancelled calls

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        for _ in range(30):
            for stream in [raw.ask(head(LIVE), EMPTY, end=end) for _ in range(100)]:
                raw.core.reset_stream(stream)
            raw.flush()
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        raw.close()

    serve(use, proxied=proxied)


@pytest.mark.parametrize("answered", [1, 10])
def test_resets__of_most_calls__end_the_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """CVE-2023-44487: a few answers do not pay for many cancelled calls; as many as those do."""
    monkeypatch.setattr(connection, "CAPACITY", 100.0)
    monkeypatch.setattr(connection, "PER_SECOND", 0.0)  # else a slow machine forgives all

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        for _ in range(120):
            for stream in [raw.ask(head(), end=False) for _ in range(10)]:
                raw.core.reset_stream(stream)
            last = [raw.ask(head(LIVE), EMPTY) for _ in range(answered)][-1]
            if raw.closed:
                break
            try:
                await raw.trailers(last)
            except AssertionError:
                break
        assert raw.closed == (answered == 1)
        raw.close()

    serve(use)


def test_headers__above_the_limit__end_the_connection(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        for size in (1600, 4000):
            # Characters that header compression makes no shorter.
            fields = [(b"x-%d" % number, b"&" * size) for number in range(30)]
            stream = raw.ask(head(LIVE, *fields), EMPTY)
            if size == 1600:
                assert (await raw.trailers(stream))[b"grpc-status"] == b"0"
        assert await raw.ended() == ErrorCodes.ENHANCE_YOUR_CALM
        raw.close()

    serve(use)


def test_drain__calls_in_flight__are_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        go = asyncio.Event()
        infer = host.infer

        async def later(*arguments: Any) -> Answer:
            await go.wait()
            return await infer(*arguments)

        replace_infer(monkeypatch, host, later)
        raw = await Raw.open(server.port)
        body = framed(infer_message().SerializeToString())
        streams = [raw.ask(head(), body)]
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        stopping = asyncio.create_task(server.stop(30))
        # h2 allows no call after a GOAWAY: what was on its way then is made by hand.
        block = raw.core.encoder.encode(head())
        stream = raw.core.get_next_available_stream_id()
        await asyncio.sleep(0)
        raw.writer.write(_frame(1, 4, stream, block) + _frame(0, 1, stream, body))
        go.set()
        data = b""
        while chunk := await asyncio.wait_for(raw.reader.read(1 << 16), 30):
            data += chunk
            if _frame(6, 0, 0, b"mlctlend") in data:
                raw.writer.write(_frame(6, 1, 0, b"mlctlend"))
                data = data.replace(_frame(6, 0, 0, b"mlctlend"), _frame(6, 9, 0, b"mlctlend"))
        await asyncio.wait_for(stopping, 30)
        for asked in (*streams, stream):
            assert _frame(0, 0, asked, b"")[5:9] in data
            assert b"\1\5" + asked.to_bytes(4, "big") in data  # its trailers
        assert data.count(_GOAWAY) == 2
        raw.close()

    assert counted(serve(use), "ok") == 2


def test_goaway__of_the_client__its_calls_are_answered(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.SettingsAcknowledged))
        stream = raw.ask(head(), framed(infer_message().SerializeToString()), end=True)
        raw.writer.write(_frame(7, 0, 0, bytes(8)))
        assert (await raw.trailers(stream))[b"grpc-status"] == b"0"
        while await raw.receive():
            pass
        raw.close()

    serve(use)


def test_timeouts__silent_connection__is_closed(serve: Serve) -> None:
    times = Times(tick=0.05, preface=0.2, silence=0.3)

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1 << 20)  # it hears settings, and no more
        writer.close()
        raw = await Raw.open(server.port)
        await raw.until(lambda: len(raw.of(events.PingReceived)) >= 2)  # it answers, and stays
        data = b""
        while b"mlctlpng" not in data:
            data += await raw.reader.read(1 << 16)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await raw.reader.readexactly(1 << 20)
        raw.close()

    serve(use, times)


def test_timeouts__idle_connection__gets_a_goaway(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        data = await raw.reader.read()  # by hand: h2's client takes no ping after a GOAWAY
        assert data.count(_GOAWAY) == 2
        raw.close()

    serve(use, Times(tick=0.05, idle=0.2, farewell=0.05))


def test_timeouts__client_reads_nothing__is_disconnected(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        http2: Any = server._server
        (connection,) = http2._connections
        # As the transport says it when it is full: a kernel may take any number of bytes.
        connection.pause_writing()
        raw.ask(head(LIVE), EMPTY)
        await until(lambda: not http2._connections)
        assert not raw.of(events.StreamEnded, 3)
        raw.close()

    serve(use, Times(tick=0.05, stall=0.3))


def test_connections__above_the_limit__are_closed(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        first = await Raw.open(server.port)
        assert (await first.trailers(first.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        second = await Raw.open(server.port)
        assert await second.ended() is None
        assert (await first.trailers(first.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        first.close()
        second.close()

    serve(use, max_connections=1)


@pytest.mark.parametrize("ticks", range(5))
def test_stop__connection_accepted_in_the_last_ticks__is_closed(serve: Serve, ticks: int) -> None:
    with contextlib.ExitStack() as clients:
        opened: list[socket.socket] = []

        async def use(server: GrpcServer, _host: ServedModel) -> None:
            opened.append(socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS))
            clients.enter_context(opened[0])
            for _ in range(ticks):
                await asyncio.sleep(0)

        # What the server's loop still holds as it ends fails the test too (suite/connections.py).
        serve(use, Times(farewell=0.01))
        assert closed_by_server(opened[0])


def closed_by_server(client: socket.socket) -> bool:
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    prefix = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return prefix + stream.to_bytes(4, "big") + payload
