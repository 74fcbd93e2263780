"""Infer calls that are known: the answers, statuses and counts of all others, on a real socket."""

from __future__ import annotations

import asyncio
import logging
import threading
from math import inf
from typing import Any, cast

import grpc
import numpy as np
import pytest
from h2 import events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from services.online.batching.admission import QueueFullError, Shut
from services.online.batching.budget import Inflight
from services.online.grpc.http2.desk import InferCall
from services.online.grpc.server import GrpcServer
from services.online.models.served_model import ServedModel
from services.protocol.messages import methods
from services.protocol.priority import Priority
from tests.services.online.grpc.http2.conftest import (
    INFER,
    LIVE,
    Raw,
    Serve,
    framed,
    head,
    infer_message,
)
from tests.support.listening import until

BODY = framed(infer_message().SerializeToString())
TOKEN = "the-token-0123456789abcdef"


def body(value: float, **fields: Any) -> bytes:
    message = infer_message()
    message.raw_input_contents[0] = np.full((1, 4), value, "<f4").tobytes()
    for name, field in fields.items():
        setattr(message, name, field)
    return framed(message.SerializeToString())


def rows(data: bytes) -> list[float]:
    message = methods()["ModelInfer"].response.FromString(data[5:])
    found: list[float] = np.frombuffer(message.raw_output_contents[0], "<f4").tolist()
    return found


def data_of(raw: Raw, stream: int) -> bytes:
    return b"".join(event.data for event in raw.of(events.DataReceived, stream))


async def learned(server: GrpcServer, *extra: tuple[bytes, bytes]) -> Raw:
    """A connection after a call that the desk could learn of."""
    raw = await Raw.open(server.port)
    await raw.until(lambda: raw.of(events.SettingsAcknowledged))
    assert (await raw.trailers(raw.ask(head(INFER, *extra), BODY)))[b"grpc-status"] == b"0"
    return raw


def hold(host: ServedModel) -> threading.Event:
    """Let no batch end before the event is set."""
    batching: Any = host._batching
    gate, model = threading.Event(), batching._model

    class Held:
        check = model.check

        def run(self, inputs: Any) -> Any:
            assert gate.wait(30)
            return model.run(inputs)

    batching._model, batching._inline = Held(), False
    return gate


def counted(registry: CollectorRegistry, outcome: str) -> float | None:
    labels = {"model": "tiny", "protocol": "grpc", "outcome": outcome}
    return registry.get_sample_value("mlctl_requests_total", labels)


def test_the_same_answer_byte_for_byte(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        before = len(taken)
        again = raw.ask(head(), BODY)
        found = await raw.trailers(again)
        assert len(taken) == before + 1
        assert data_of(raw, again) == data_of(raw, 1)
        assert found == await raw.trailers(1)
        streams = {raw.ask(head(), body(value)): value for value in range(200)}
        for stream, value in streams.items():
            assert (await raw.trailers(stream))[b"grpc-status"] == b"0"
            expected = host._batching._model.run({"x": np.full((1, 4), value, np.float32)})  # type: ignore[union-attr]
            assert rows(data_of(raw, stream)) == expected["y"].ravel().tolist()
        assert len(taken) == before + 201
        assert host.inflight.used == 0
        raw.close()

    registry = serve(use)
    assert counted(registry, "ok") == 202
    for stage in ("parse", "queue", "infer", "serialize"):
        labels = {"model": "tiny", "stage": stage}
        assert registry.get_sample_value("mlctl_stage_seconds_count", labels) == 202


def test_what_is_not_known_goes_the_long_way(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await learned(server)
        cases: list[tuple[Any, bytes, bytes]] = [
            (head(), body(1, model_name="other"), b"5"),
            (head(), body(1, id="sieben \u0667"), b"0"),
            (head(), body(1, id="7" * 20_000), b"0"),
            (head(), BODY + BODY, b"3"),
            (head(), b"\1" + BODY[1:], b"3"),
            (head(INFER, (b"grpc-encoding", b"snappy")), BODY, b"12"),
            (head(INFER, (b"grpc-timeout", b"soon")), BODY, b"3"),
            (head(INFER, (b"mlctl-priority", b"high")), BODY, b"0"),
            (head(INFER, (b"trace-bin", b"a")), BODY, b"3"),
            (head(b"/inference.GRPCInferenceService/ServerLive"), BODY, b"0"),
        ]
        for headers, data, status in cases:
            assert (await raw.trailers(raw.ask(headers, data)))[b"grpc-status"] == status
        assert not taken
        raw.close()

    serve(use)


def test_its_deadline(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        gate = hold(host)
        for timeout in (b"0m", b"50m"):
            late = await raw.trailers(raw.ask(head(INFER, (b"grpc-timeout", timeout)), BODY))
            assert (late[b"grpc-status"], late[b"mlctl-code"]) == (b"4", b"deadline_exceeded")
        gate.set()
        assert len(taken) == 2
        assert host.inflight.used == 0
        raw.close()

    assert counted(serve(use), "deadline_exceeded") == 2


def test_who_leaves_is_withdrawn(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        gate = hold(host)
        first, second = raw.ask(head(), BODY), raw.ask(head(), BODY)
        await until(lambda: len(taken) == 2)
        raw.core.reset_stream(first, ErrorCodes.CANCEL)
        raw.flush()
        await until(taken[0].done)
        assert not taken[1].done()
        raw.close()
        await until(taken[1].done)
        assert host.inflight.used == 0
        gate.set()
        assert second

    assert counted(serve(use), "gone") == 2


def test_a_stop_ends_it_with_a_status(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            method: Any = channel.unary_unary(INFER.decode())
            await method(BODY[5:])
            gate = hold(host)
            call = method(BODY[5:])
            waiting = asyncio.ensure_future(call.code())
            await until(lambda: len(taken) == 1)
            await server.stop(0)
            assert await waiting is grpc.StatusCode.UNAVAILABLE
            gate.set()

    serve(use)


def test_a_model_that_fails_shows_nothing(
    serve: Serve, taken: list[InferCall], caplog: pytest.LogCaptureFixture
) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        gate = hold(host)
        batching: Any = host._batching

        def fail(_inputs: Any) -> Any:
            raise RuntimeError("a secret")

        batching._model.run = fail
        with caplog.at_level(logging.CRITICAL):
            found = await raw.trailers(raw.ask(head(), BODY))
        assert found[b"grpc-status"] == b"13"
        assert not any(b"secret" in value for value in found.values())
        assert len(taken) == 1
        gate.set()
        raw.close()

    assert counted(serve(use), "internal") == 1


def test_a_full_queue_says_when_to_come_again(
    serve: Serve, taken: list[InferCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        policy: Any = host._batching._policy  # type: ignore[union-attr]
        for count, seconds in enumerate((2.3, 2.3, 7.1), 1):

            def full(*_: Any, seconds: float = seconds) -> None:
                raise QueueFullError(8, 8, seconds, wait=seconds)

            monkeypatch.setattr(policy, "offer", full)
            found = await raw.trailers(raw.ask(head(), BODY))
            assert len(taken) == count
            # Such an id is not understood at a glance: this one goes the long way.
            assert found == await raw.trailers(raw.ask(head(), body(1, id="\u0667")))
            assert len(taken) == count
            assert (found[b"grpc-status"], found[b"retry-after"]) == (b"8", b"%d" % (seconds + 1))
            assert f"{seconds:.3g} s".encode() in found[b"grpc-message"]
            assert b"grpc-status-details-bin" in found
        raw.close()

    assert counted(serve(use), "queue_full") == 6


def test_while_the_queue_is_full_a_call_is_told_before_it_is_queued(
    serve: Serve, taken: list[InferCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        policy: Any = host._batching._policy  # type: ignore[union-attr]
        error = QueueFullError(8, 8, 2.3, wait=2.3)

        def full(*_: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(policy, "offer", full)
            expected = await raw.trailers(raw.ask(head(), BODY))
            assert len(taken) == 1
            policy._shut = Shut(1, Priority.NORMAL, inf, error)
            for _ in range(3):
                assert await raw.trailers(raw.ask(head(), BODY)) == expected
            assert len(taken) == 1
        assert host.inflight.used == 0
        policy._shut = None
        assert (await raw.trailers(raw.ask(head(), BODY)))[b"grpc-status"] == b"0"
        assert len(taken) == 2
        raw.close()

    assert counted(serve(use), "queue_full") == 4


def test_no_room_and_no_token(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server, (b"authorization", b"Bearer " + TOKEN.encode()))
        right = (b"authorization", b"Bearer " + TOKEN.encode())
        assert (await raw.trailers(raw.ask(head(), BODY)))[b"grpc-status"] == b"16"
        assert (await raw.trailers(raw.ask(head(INFER, right), BODY)))[b"grpc-status"] == b"0"
        assert len(taken) == 1
        host.inflight = Inflight(10)
        found = await raw.trailers(raw.ask(head(INFER, right), BODY))
        assert found[b"grpc-status"] == b"8"
        assert b"retry-after" in found
        assert len(taken) == 1
        raw.close()

    serve(use, token=SecretStr(TOKEN))


def test_who_shows_no_token_holds_no_room(serve: Serve) -> None:
    """A probe's length is counted when it is told."""

    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        found = await raw.trailers(raw.ask(head(LIVE), b"\0\0\x10\0\0", end=False))
        assert found[b"grpc-status"] == b"8"
        assert host.inflight.used == 0
        raw.close()

    serve(use, token=SecretStr(TOKEN), deadline_ms=60_000)


def test_small_windows_get_it_in_pieces_or_drop_it(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
        stream = raw.ask(head(), BODY)
        while not raw.of(events.StreamEnded, stream):
            await raw.receive()
            have = len(data_of(raw, stream))
            if not raw.of(events.StreamEnded, stream) and have % 10 == 0 and have:
                raw.core.increment_flow_control_window(10, stream)
                raw.flush()
        assert data_of(raw, stream) == data_of(raw, 1)
        dropped = raw.ask(head(), BODY)
        await raw.until(lambda: raw.of(events.StreamReset, dropped))
        assert len(taken) == 2
        lean: Any = server._server
        (connection,) = lean._connections
        assert connection.outbox.is_empty
        assert connection.outbox.size == 0
        assert host.inflight.used == 0
        raw.close()

    serve(use, deadline_ms=300)


def test_who_takes_nothing_asks_nothing_more(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, taken: list[InferCall]
) -> None:
    monkeypatch.setattr("services.online.grpc.http2.connection._PARKED_BYTES", 100)

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await learned(server)
        raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        first = raw.ask(head(), BODY) and raw.ask(head(), BODY)
        await until(lambda: len(taken) == 2 and all(call.done() for call in taken))
        refused = raw.ask(head(), BODY)
        await raw.until(lambda: raw.of(events.StreamReset, refused))
        assert raw.of(events.StreamReset, refused)[0].error_code == ErrorCodes.REFUSED_STREAM
        raw.core.increment_flow_control_window(1000, first)
        raw.flush()
        assert (await raw.trailers(first))[b"grpc-status"] == b"0"
        raw.close()

    serve(use)


def test_what_one_does_not_take_is_told_to_all_once_it_is_too_much(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, taken: list[InferCall]
) -> None:
    monkeypatch.setattr("services.online.grpc.http2.connection._ALL_PARKED_BYTES", 50)

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await learned(server)
        raw.core.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        raw.ask(head(), BODY)
        await until(lambda: len(taken) == 1 and taken[0].done())
        other = await Raw.open(server.port)
        refused = other.ask(head(), BODY)
        await other.until(lambda: other.of(events.StreamReset, refused))
        raw.close()
        parking = cast("Any", server)._server._parking
        await until(lambda: not parking.size)
        again = other.ask(head(), BODY)
        assert (await other.trailers(again))[b"grpc-status"] == b"0"
        other.close()

    serve(use)


def test_a_call_in_pieces_is_answered_alike(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await learned(server)
        stream = raw.ask(head(), BODY[:20], end=False)
        await asyncio.sleep(0)
        raw.core.send_data(stream, BODY[20:], end_stream=True)
        raw.flush()
        assert (await raw.trailers(stream))[b"grpc-status"] == b"0"
        assert data_of(raw, stream) == data_of(raw, 1)
        assert not taken
        raw.close()

    serve(use)
