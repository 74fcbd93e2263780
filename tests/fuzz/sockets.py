"""Targets on real sockets: any bytes to the HTTP server and to the gRPC server."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop
from hpack import Encoder
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from tests.fuzz.documents import BINARY, BINARY_DOCUMENT, V2_DOCUMENT, altered
from tests.fuzz.target import Feed, FindingError, Target
from tests.services.online.grpc.http2.conftest import EMPTY, LIVE, framed, head, infer_message
from tests.services.online.grpc.http2.test_fuzz import PREFACE, frames
from tests.support.bundles import make_bundle
from tests.support.listening import listening, until

_LONGEST_WAIT = 20.0
_PATIENCE = 0.01  # a server does not answer a client that has hung up
_LONGER = (_PATIENCE, 0.2, 2.0, 10.0)  # the machine may be busy
_HEADERS_AND_END = 4 | 1  # flags of a frame
_INFER = b"/v2/models/tiny/infer"
GOOD = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'


@dataclass(frozen=True, slots=True)
class _Server:
    """A server with a model; `alive` is whether it still answers a good request."""

    port: int
    host: ServedModel
    alive: Callable[[], Coroutine[None, None, bool]]


class _Records(logging.Handler):
    """What is logged as an error: nothing that a caller sends may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record)[-300:])


async def _exchange(port: int, data: bytes, patience: float = _PATIENCE) -> bytes:
    """Send all of it, and hang up when nothing came for `patience` seconds; return the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(_LONGEST_WAIT):
            with suppress(ConnectionError):  # cut off, which is an answer, too
                writer.write(data)
                while part := await _soon(reader, patience):
                    answer += part
                writer.write_eof()
                answer += await reader.read()
    except TimeoutError:
        raise FindingError("the connection was not closed") from None
    finally:
        writer.close()
    return answer


async def _soon(reader: asyncio.StreamReader, seconds: float) -> bytes:
    """What comes within so many seconds; nothing if nothing does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await reader.read(1 << 16)
    return b""


@asynccontextmanager
async def _model() -> AsyncIterator[ServedModel]:
    with tempfile.TemporaryDirectory(prefix="mlctl-fuzz-") as folder:
        bundle = make_bundle(Path(folder) / "bundle")
        settings = ServerSettings(max_body_bytes=100_000)
        host = ServedModel(bundle, settings, registry=CollectorRegistry())
        await host.start()
        try:
            yield host
        finally:
            await host.stop()


@asynccontextmanager
async def _http_server() -> AsyncIterator[_Server]:
    async with _model() as host:
        inference = InferHandler(host)
        app = V2App(host, inference)
        async with listening(app, infer_protocol(inference)) as server:

            async def alive() -> bool:
                for patience in _LONGER:
                    if b" 200 " in await _exchange(server.port, post(GOOD), patience):
                        return True
                return False

            yield _Server(server.port, host, alive)


@asynccontextmanager
async def _grpc_server() -> AsyncIterator[_Server]:
    async with _model() as host:
        server = GrpcServer(host, "127.0.0.1", 0)
        await server.start()

        async def alive() -> bool:
            for patience in _LONGER:
                answer = await _exchange(server.port, call(head(LIVE), EMPTY), patience)
                if (1, _HEADERS_AND_END) in _frames_of(answer):
                    return True
            return False

        try:
            yield _Server(server.port, host, alive)
        finally:
            await server.stop(1)


Opened = Callable[[], AbstractAsyncContextManager[_Server]]


@contextmanager
def _socket(opened: Opened, told: Callable[[bytes], str]) -> Iterator[Feed]:
    records = _Records()
    logging.getLogger().addHandler(records)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            held = opened()
            server = runner.run(held.__aenter__())

            def feed(data: bytes) -> str:
                answer = runner.run(_exchange(server.port, data))
                runner.run(_settled(server.host))
                _judge(answer, records)
                return told(answer)

            try:
                yield feed
                assert runner.run(server.alive())
            finally:
                runner.run(held.__aexit__(None, None, None))
    finally:
        logging.getLogger().removeHandler(records)


async def _settled(host: ServedModel) -> None:
    """A request may end a moment after its connection."""
    try:
        await until(lambda: not host.inflight.used)
    except TimeoutError:
        raise FindingError("bytes of an ended request are still counted") from None


def _judge(answer: bytes, records: _Records) -> None:
    if records.messages:
        told, records.messages = records.messages[0], []
        raise FindingError(f"it was logged as an error: {told}")
    if b"HTTP/1.1 500 " in answer or b'"code":"internal"' in answer:
        raise FindingError(f"the server failed: {answer[-200:]!r}")


def _statuses(answer: bytes) -> str:
    return str(re.findall(rb"HTTP/1.1 (\d+)|\"error\":\"(.{12})", answer)[:4])


def _frames_of(answer: bytes) -> list[tuple[int, int]]:
    """The kinds and flags of the first frames."""
    found: list[tuple[int, int]] = []
    at = 0
    while at + 9 <= len(answer) and len(found) < 8:
        found.append((answer[at + 3], answer[at + 4]))
        at += 9 + int.from_bytes(answer[at : at + 3], "big")
    return found


def post(body: bytes, *lines: bytes, path: bytes = _INFER, length: int | None = None) -> bytes:
    """An HTTP request as bytes."""
    size = len(body) if length is None else length
    told = (b"Host: test", b"Content-Length: %d" % size, *lines)
    return b"POST " + path + b" HTTP/1.1\r\n" + b"\r\n".join(told) + b"\r\n\r\n" + body


def binary_post(document: object) -> bytes:
    """The same with binary tensors."""
    told = json.dumps(document).encode()
    return post(told + BINARY, b"Inference-Header-Content-Length: %d" % len(told))


def call(fields: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A gRPC call as bytes: the preface, its headers and its message, both frames its last."""
    block = Encoder().encode(fields)
    return PREFACE + _frame(1, 4, block) + _frame(0, 1, body)


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + (1).to_bytes(4, "big") + payload


def infer_call() -> bytes:
    """A good call."""
    return call(head(), framed(infer_message().SerializeToString()))


_LINES = st.sampled_from(
    [
        b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Expect: 100-continue",
        b"Inference-Header-Content-Length: 9", b"Inference-Header-Content-Length: -1",
        b"Content-Length: 5", b"Connection: close", b"Upgrade: h2c", b"X: " + b"y" * 9000,
        b"timeout: 1", b"x-request-id: \xff\xfe", b"traceparent: 00-zz", b": x", b"Host: b",
    ]
)  # fmt: skip
_BODIES = altered(V2_DOCUMENT).map(lambda document: json.dumps(document).encode())
_POSTS = st.builds(
    lambda body, lines, path, length: post(body, *lines, path=path, length=length),
    _BODIES | st.binary(max_size=40) | st.just(GOOD),
    st.lists(_LINES, max_size=3),
    st.sampled_from(
        [_INFER] * 4
        + [b"/v2/models/tiny/versions/x/infer", b"/v2/models/%00/infer", b"/v2/../v2", b"/"]
        + [b"/v2/models/tiny/infer_stream", b"/v2/repository/models/tiny/load", b"*"]
    ),
    st.none() | st.sampled_from([0, 1, 1 << 40]),
)
_REQUESTS = st.one_of(
    _POSTS,
    altered(BINARY_DOCUMENT).map(binary_post),
    st.lists(_POSTS, min_size=2, max_size=3).map(b"".join),
)
_FRAMES = st.one_of(
    st.lists(frames(), max_size=8).map(lambda found: PREFACE + b"".join(found)),
    st.binary(max_size=60).map(lambda body: call(head(), framed(body))),
)
SOCKETS = (
    Target("http", lambda: _socket(_http_server, _statuses), _REQUESTS, frozenset()),
    Target(
        "grpc",
        lambda: _socket(_grpc_server, lambda answer: str(_frames_of(answer))),
        _FRAMES,
        frozenset(),
    ),
)
