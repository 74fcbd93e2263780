"""A started model with a gRPC server, and a raw HTTP/2 client for what no gRPC client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import uvloop
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.http2.connection import Times
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.wait import PATIENCE_SECONDS

Fields = list[tuple[bytes, bytes]]
X = np.array([[1, 2, 3, 4]], dtype="<f4")
INFER = f"/{SERVICE}/ModelInfer".encode()
LIVE = f"/{SERVICE}/ServerLive".encode()
EMPTY = b"\0\0\0\0\0"


def infer_message(rows: int = 1) -> Any:
    message = methods()["ModelInfer"].request(model_name="tiny")
    message.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    message.raw_input_contents.append(np.repeat(X, rows, 0).tobytes())
    return message


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def head(path: bytes = INFER, *extra: tuple[bytes, bytes], method: bytes = b"POST") -> Fields:
    return [
        (b":method", method),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]


class Raw:
    """One connection of h2's client side; every event is kept in `events`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        config = H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.core = H2Connection(config)
        self.events: list[events.Event] = []
        self.closed = False

    @classmethod
    async def open(cls, port: int) -> Raw:
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        raw.core.initiate_connection()
        raw.flush()
        return raw

    def flush(self) -> None:
        self.writer.write(self.core.data_to_send())

    def ask(self, headers: Fields, body: bytes | None = None, *, end: bool = True) -> int:
        stream = self.core.get_next_available_stream_id()
        self.core.send_headers(stream, headers, end_stream=end and body is None)
        if body is not None:
            self.core.send_data(stream, body, end_stream=end)
        self.flush()
        return stream

    async def receive(self) -> bool:
        """Take what came; False at the connection's end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError:
                data = b""
        if not data:
            self.closed = True
            return False
        self.events += self.core.receive_data(data)
        self.flush()
        return True

    async def until(self, predicate: Callable[[], object]) -> None:
        while not predicate():
            assert await self.receive(), "the connection has ended"

    def of(self, kind: type, stream: int | None = None) -> list[Any]:
        return [
            event
            for event in self.events
            if isinstance(event, kind)
            and (stream is None or getattr(event, "stream_id", None) == stream)
        ]

    async def trailers(self, stream: int) -> dict[bytes, bytes]:
        """The headers and trailers of a whole answer."""
        await self.until(lambda: self.of(events.StreamEnded, stream))
        kinds = (events.ResponseReceived, events.TrailersReceived)
        return dict(
            pair for kind in kinds for event in self.of(kind, stream) for pair in event.headers
        )

    async def ended(self) -> int | None:
        """The code of the last GOAWAY, when the server has closed the connection."""
        while await self.receive():
            pass
        told = self.of(events.ConnectionTerminated)
        return int(told[-1].error_code) if told else None

    def close(self) -> None:
        self.writer.close()


Use = Callable[[GrpcServer, ServedModel], Awaitable[None]]
Serve = Callable[..., CollectorRegistry]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def serve(shared_bundle: VerifiedBundle, request: pytest.FixtureRequest) -> Serve:
    """Run a test with a started server, whose connections have `times`."""

    def run(use: Use, times: Times | None = None, **settings: Any) -> CollectorRegistry:
        return serving(shared_bundle, use, times, request.param, **settings)

    return run


def serving(
    bundle: VerifiedBundle,
    use: Use,
    times: Times | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    **settings: Any,
) -> CollectorRegistry:
    registry = CollectorRegistry()

    async def main() -> None:
        host = ServedModel(bundle, ServerSettings(**settings), registry=registry)
        await host.start()
        server = GrpcServer(host, "127.0.0.1", 0)
        server._server._times = times or Times()
        await server.start()
        try:
            async with asyncio.timeout(60):
                await use(server, host)
        finally:
            await server.stop(1)
            await host.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    return registry
