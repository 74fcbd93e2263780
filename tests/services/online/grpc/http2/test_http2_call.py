"""An infer request over HTTP/2 means what it means over HTTP/1.1."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from h2 import events
from h2.errors import ErrorCodes

from mlctl.services.online.batching.admission import CachedRejection, Inflight, QueueFullError
from mlctl.services.online.grpc.http2.core import Sending, StreamState
from mlctl.services.online.grpc.http2.http2_call import Http2Call
from mlctl.services.online.grpc.http2.outbox import Parking, SendQueue
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.server.seam import gated
from mlctl.services.online.turns import turns_of
from mlctl.services.protocol.priority import Priority
from tests.services.online.grpc.http2.conftest import Fields, Raw, Serve
from tests.services.online.grpc.http2.test_connection import counted
from tests.services.online.http.connection.conftest import Reply, read_reply
from tests.support.listening import Listening, listening, until

INFER = "/v2/models/tiny/infer"
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
RAW = np.array([[1, 2, 3, 4]], dtype="<f4").tobytes()
BINARY = json.dumps(
    {
        "inputs": [{**TENSOR, "data": None, "parameters": {"binary_data_size": len(RAW)}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
).encode()
LENGTH = b"inference-header-content-length"
LIMIT = 200_000
TOKEN = "secret-of-16-letters"
# These tell of the moment, or are each server's own.
VARYING = {b"date", b"server-timing"}
CASES: dict[str, tuple[str, Fields, bytes]] = {
    "json": (INFER, [(b"content-type", b"application/json")], BODY),
    "binary": (INFER, [(LENGTH, b"%d" % len(BINARY))], BINARY + RAW),
    "query and slash": (INFER + "/?a=1", [], BODY),
    "escaped": ("/v2/models/t%69ny/infer", [], BODY),
    "bad json": (INFER, [], b"{"),
    "no body": (INFER, [], b""),
    "unknown input": (INFER, [], BODY.replace(b'"x"', b'"z"')),
    "media type": (INFER, [(b"content-type", b"text/csv")], BODY),
    "media type's parameter": (INFER, [(b"content-type", b"Application/JSON; a=b")], BODY),
    "bad length": (INFER, [(LENGTH, b"x")], BODY),
    "long length": (INFER, [(LENGTH, b"9999")], BODY),
    "large": (INFER, [], b" " * (LIMIT + 1)),
    "priority": (INFER, [(b"mlctl-priority", b"high")], BODY),
    "bad priority": (INFER, [(b"mlctl-priority", b"urgent")], BODY),
    "packed": (INFER, [(b"content-encoding", b"gzip")], gzip.compress(BODY)),
    "badly packed": (INFER, [(b"content-encoding", b"gzip")], BODY),
    "unknown coding": (INFER, [(b"content-encoding", b"br")], BODY),
    "packed answer": (INFER, [(b"accept-encoding", b"gzip")], BODY),
    "late": (INFER, [], BODY[:-1] + b', "parameters": {"timeout": 1}}'),
    "two lengths": (INFER, [(LENGTH, b"1"), (LENGTH, b"2")], BODY),
    "unknown model": ("/v2/models/other/infer", [], BODY),
    "unknown version": ("/v2/models/tiny/versions/v9/infer", [], BODY),
    "no model": ("/v2/models//infer", [], BODY),
    "too many parts": ("/v2/models/tiny/more/infer", [], BODY),
    "many headers": (INFER, [(b"x-%d" % number, b"1") for number in range(90)], BODY),
    "trace": (INFER, [(b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")], BODY),
}


def fields_of(path: str, headers: Fields, body: bytes | None) -> Fields:
    own = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    length = [] if body is None else [(b"content-length", b"%d" % len(body))]
    return [*own, (b":authority", b"test"), *length, *headers]


async def over_http1(port: int, path: str, headers: Fields, body: bytes) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [b"%b: %b\r\n" % header for header in headers]
    writer.write(b"POST %b HTTP/1.1\r\nhost: test\r\n" % path.encode() + b"".join(lines))
    writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
    reply = await read_reply(reader)
    writer.close()
    return reply


async def reply_of(raw: Raw, stream: int) -> Reply:
    """The whole answer, whose data the client takes as it comes."""

    def ended() -> bool:
        for event in raw.of(events.DataReceived, stream):
            if event.flow_controlled_length:
                raw.core.acknowledge_received_data(event.flow_controlled_length, stream)
                event.flow_controlled_length = 0
        raw.flush()
        return bool(raw.of(events.StreamEnded, stream))

    await raw.until(ended)
    (head,) = raw.of(events.ResponseReceived, stream)
    headers = dict(head.headers)
    assert len(headers) == len(head.headers)
    assert not raw.of(events.TrailersReceived, stream)
    body = b"".join(event.data for event in raw.of(events.DataReceived, stream))
    return Reply(int(headers.pop(b":status")), headers, body)


async def over_http2(port: int, path: str, headers: Fields, body: bytes, pieces: int) -> Reply:
    """Send the request at once if `pieces` is 0, else its body in that many frames."""
    raw = await Raw.open(port)
    await raw.until(lambda: raw.of(events.RemoteSettingsChanged))
    stream = raw.ask(
        fields_of(path, headers, body), body if not pieces and body else None, end=False
    )
    for number in range(pieces):
        await raw.writer.drain()
        await asyncio.sleep(0)
        if raw.of(events.StreamEnded, stream):
            break
        size = len(body) // pieces + 1
        raw.core.send_data(stream, body[number * size : (number + 1) * size])
        raw.flush()
    raw.core.end_stream(stream)
    raw.flush()
    reply = await reply_of(raw, stream)
    raw.close()
    return reply


def plain(reply: Reply) -> tuple[int, dict[bytes, bytes], bytes]:
    kept = {name: value for name, value in reply.headers.items() if name not in VARYING}
    names = sorted(reply.headers)
    return reply.status, {**kept, b"names": b" ".join(names)}, reply.body


def with_http1(host: ServedModel) -> Any:
    inference = InferHandler(host)
    return listening(gated(V2App(host, inference), inference, host), infer_protocol(inference))


@pytest.mark.parametrize("token", [None, TOKEN])
def test_infer__over_http2__is_answered_counted_and_logged_as_over_http1(
    serve: Serve, tmp_path: Path, token: str | None
) -> None:
    log = tmp_path / "access.log"
    ids: list[str] = []

    async def ask(server: GrpcServer, http1: Listening, name: str, pieces: int) -> None:
        path, headers, body = CASES[name]
        for shown in ([], [(b"authorization", b"Bearer " + TOKEN.encode())]):
            sent = [*headers, *shown, (b"x-request-id", b"id-%d" % len(ids))]
            if name == "large":
                pieces = 20  # a frame has at most 64 KiB
            first = await over_http1(http1.port, path, sent, body)
            second = await over_http2(server.port, path, sent, body, pieces)
            assert plain(first) == plain(second), name
            ids.append(f"id-{len(ids)}")

    async def use(server: GrpcServer, host: ServedModel) -> None:
        async with with_http1(host) as http1:
            for name in CASES:
                for pieces in (0, 1, 3):
                    await ask(server, http1, name, pieces)
        assert host.inflight.used == 0

    settings: dict[str, Any] = {} if token is None else {"token": token}
    registry = serve(use, max_body_bytes=LIMIT, access_log=str(log), **settings)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    outcomes: dict[str, list[tuple[Any, ...]]] = {}
    for line in lines:
        known = tuple(line.get(key) for key in ("code", "status", "protocol", "trace_id", "rows"))
        outcomes.setdefault(line["request_id"], []).append(known)
    assert list(outcomes) == ids
    assert all(len(each) == 2 and each[0] == each[1] for each in outcomes.values())
    codes = {line["code"] for line in lines}
    expected = {"ok", "invalid_input", "unsupported_media_type", "payload_too_large"}
    assert codes >= expected | ({"unauthenticated"} if token else set())
    for code, client in {(line["code"], line["client"]) for line in lines}:
        labels = {"model": "tiny", "protocol": "http", "outcome": code}
        labels |= {"client": client or ""} if token else {}
        many = len([line for line in lines if (line["code"], line["client"]) == (code, client)])
        assert registry.get_sample_value("mlctl_requests_total", labels) == many


@pytest.mark.parametrize("given", [b"a b", b"", b"x" * 129, "\u00e9".encode(), b"y" * 128])
def test_request_id__over_http2__is_echoed_or_replaced_as_over_http1(
    serve: Serve, given: bytes
) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        sent = [(b"x-request-id", given)]
        async with with_http1(host) as http1:
            first = await over_http1(http1.port, INFER, sent, BODY)
        second = await over_http2(server.port, INFER, sent, BODY, 0)
        found = [each.headers[b"x-request-id"] for each in (first, second)]
        assert [each == given for each in found] == [len(given) == 128] * 2
        assert all(found)

    serve(use)


def test_queue_full__over_http2__is_rejected_without_a_parse_as_over_http1(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, made = QueueFullError(8, 8, 2.3), []
    init = Http2Call.__init__

    def noted(self: Http2Call, *given: Any) -> None:
        made.append(self)
        init(self, *given)

    monkeypatch.setattr(Http2Call, "__init__", noted)

    async def use(server: GrpcServer, host: ServedModel) -> None:
        batching: Any = host._batching
        http2: Any = server._server
        raw = await Raw.open(server.port)
        async with with_http1(host) as http1:
            for rejecting in (False, True):
                for sent, body, unparsed in (
                    ([(b"x-request-id", b"a")], BODY, True),
                    ([(b"x-request-id", b"a")], b'{"inputs":', True),
                    ([(b"x-request-id", b"a"), (b"mlctl-priority", b"high")], b"{", False),
                    ([(b"x-request-id", b"a")], b'{"priority"', False),
                ):
                    for handler in http2._infer._handlers.values():
                        handler.rejecting = rejecting
                    rejection = CachedRejection(1, Priority.NORMAL, math.inf, full)
                    batching._policy.rejection = rejection
                    first = await over_http1(http1.port, INFER, sent, body)
                    before = len(made)
                    reply = await reply_of(raw, raw.ask(fields_of(INFER, sent, body), body))
                    assert (len(made) > before) != (unparsed and rejecting)
                    if body == BODY or (unparsed and rejecting):
                        assert (reply.status, reply.headers[b"retry-after"]) == (503, b"3")
                    else:
                        assert reply.status == 400
                    if body == BODY:
                        assert plain(first) == plain(reply)
            batching._policy.rejection = None
            sent = fields_of(INFER, [], BODY)
            assert (await reply_of(raw, raw.ask(sent, BODY))).status == 200
        raw.close()

    serve(use)


def test_infer__many_streams_in_one_read__are_each_answered(serve: Serve) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.RemoteSettingsChanged))
        streams = []
        for number in range(200):
            stream = raw.core.get_next_available_stream_id()
            tensor = {**TENSOR, "data": [number * each for each in (1, 2, 3, 4)]}
            body = json.dumps({"id": f"r{number}", "inputs": [tensor]}).encode()
            ids = [(b"x-request-id", b"id-%d" % number)]
            raw.core.send_headers(stream, fields_of(INFER, ids, body))
            raw.core.send_data(stream, body)
            raw.core.end_stream(stream)
            streams.append(stream)
        raw.flush()
        rows = np.array([[1, 2, 3, 4]], "f4") * np.arange(200, dtype="f4")[:, None]
        answers = (await host.infer({"x": rows})).outputs["y"].tolist()
        for number, stream in enumerate(streams):
            reply = await reply_of(raw, stream)
            assert reply.headers[b"x-request-id"] == b"id-%d" % number
            document = json.loads(reply.body)
            assert (reply.status, document["id"]) == (200, f"r{number}")
            assert document["outputs"][0]["data"] == answers[number]
        raw.close()

    serve(use)


def test_infer__body_and_answer_above_the_windows__pass_as_they_are_read(serve: Serve) -> None:
    rows = 4000
    tensor = {**TENSOR, "shape": [rows, 4], "data": [1.0, 2.0, 3.0, 4.0] * rows}
    body = json.dumps({"inputs": [tensor]}).encode() + b" " * (3 << 20)

    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        await raw.until(lambda: raw.of(events.RemoteSettingsChanged))
        stream = raw.ask(fields_of(INFER, [], body), None, end=False)
        at = 0
        while at < len(body):
            room = min(raw.core.local_flow_control_window(stream), raw.core.max_outbound_frame_size)
            if not room:
                assert await raw.receive()
                continue
            raw.core.send_data(stream, body[at : at + room])
            at += room
            raw.flush()
        assert host.inflight.used > 1 << 20
        raw.core.end_stream(stream)
        raw.flush()
        reply = await reply_of(raw, stream)
        assert (reply.status, len(reply.body) > 1 << 16) == (200, True)
        assert len(json.loads(reply.body)["outputs"][0]["data"]) == 4 * rows
        assert host.inflight.used == 0
        raw.close()

    serve(use, max_body_bytes=8 << 20)


def test_infer__body_that_does_not_come__is_late_by_the_deadline(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        stream = raw.ask(fields_of(INFER, [], BODY), BODY[:5], end=False)
        assert (await reply_of(raw, stream)).status == 504
        raw.close()

    assert counted(serve(use, deadline_ms=50), "deadline_exceeded", "http") == 1


def test_infer__too_large_by_its_length__is_rejected_before_its_body(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        stream = raw.ask(fields_of(INFER, [], b" " * 10_001), None, end=False)
        assert (await reply_of(raw, stream)).status == 413
        raw.core.send_data(stream, b" " * 100)
        raw.flush()
        await raw.until(lambda: raw.of(events.StreamReset, stream))
        assert raw.of(events.StreamReset, stream)[0].error_code == ErrorCodes.NO_ERROR
        again = fields_of(INFER, [], BODY)
        assert (await reply_of(raw, raw.ask(again, BODY))).status == 200
        raw.close()

    serve(use, max_body_bytes=10_000)


@pytest.mark.parametrize("length", [b"1", b"x"])
def test_infer__other_length_than_declared__stream_is_reset(serve: Serve, length: bytes) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        for end in (True, False):
            sent = [*fields_of(INFER, [], None), (b"content-length", length)]
            stream = raw.core.get_next_available_stream_id()
            raw.core.config.validate_outbound_headers = False
            raw.core.send_headers(stream, sent)
            raw.core.send_data(stream, BODY, end_stream=end)
            raw.flush()
            if not end:
                raw.core.end_stream(stream)
                raw.flush()
            await raw.until(lambda: raw.of(events.StreamReset, stream))  # noqa: B023
            assert raw.of(events.StreamReset, stream)[0].error_code == ErrorCodes.PROTOCOL_ERROR
        raw.close()

    serve(use)


def test_infer__client_resets_the_stream__is_withdrawn(serve: Serve) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        turns_of(asyncio.get_running_loop()).share = math.inf  # what comes at once is read at once
        raw = await Raw.open(server.port)
        for body in (None, BODY):
            await raw.until(lambda: raw.of(events.RemoteSettingsChanged))
            stream = raw.ask(fields_of(INFER, [], BODY), body, end=body is not None)
            raw.core.reset_stream(stream)
            raw.flush()
        sent = fields_of(INFER, [], BODY)
        assert (await reply_of(raw, raw.ask(sent, BODY))).status == 200
        assert host.inflight.used == 0
        raw.close()

    registry = serve(use)
    assert (counted(registry, "gone", "http"), counted(registry, "ok", "http")) == (2, 1)


def test_infer__client_waits_for_100_continue__gets_it(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        raw = await Raw.open(server.port)
        sent = fields_of(INFER, [(b"expect", b"100-Continue")], BODY)
        stream = raw.ask(sent, None, end=False)
        await raw.until(lambda: raw.of(events.InformationalResponseReceived, stream))
        raw.core.send_data(stream, BODY, end_stream=True)
        raw.flush()
        assert (await reply_of(raw, stream)).status == 200
        raw.close()

    serve(use)


def test_limits__infer_requests_without_a_body__are_charged(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        http2: Any = server._server
        room = http2._infer._room = Inflight(100_000)
        raw = await Raw.open(server.port)
        opened = [raw.ask(fields_of(INFER, [], BODY), None, end=False) for _ in range(20)]
        assert (await reply_of(raw, opened[-1])).status == 503
        assert not raw.of(events.StreamEnded, opened[0])
        assert 8 << 13 < room.used <= 100_000
        raw.close()
        await until(lambda: not room.used)

    serve(use)


def test_limits__whole_infer_requests_with_large_heads__are_charged(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        http2: Any = server._server
        room = http2._infer._room = Inflight(100_000)
        raw = await Raw.open(server.port)
        for size, status in ((2, 200), (20, 503), (2, 200)):
            large = [(b"x-%d" % number, b"&" * 500) for number in range(size * 5)]
            room.used = 90_000
            asked = raw.ask(fields_of(INFER, large, BODY), BODY)
            assert (await reply_of(raw, asked)).status == status, size
            assert room.used == 90_000
        raw.close()

    serve(use)


def test_answer__read_slowly_but_steadily__is_not_reset() -> None:
    """The time is for some progress, not for the whole answer."""

    async def use() -> None:
        core = Sending()
        found = core.streams[1] = StreamState(0, ended=True)
        queue = SendQueue(core, lambda: None, Parking())
        queue.message(1, b"x" * 100_000)
        queue.end(1, (), reset_unfinished=False, seconds=60.0)
        parked = queue._parked[1]
        found.window = 5000
        queue.resume_one(1)
        queue._check_read(1, parked, 60.0)
        assert queue.size == 95_000
        queue._check_read(1, parked, 60.0)
        assert queue.is_empty
        assert queue.size == 0

    asyncio.run(use())
