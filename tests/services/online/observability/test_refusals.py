"""What is refused before it is a request for the model is in the access log, too, and counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.server.seam import gated
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE
from tests.support.listening import listening, until

TOKEN = "the-token-0123456789abcdef"
INFER = b"POST /v2/models/tiny/infer HTTP/1.1\r\nhost: t\r\nx-request-id: mine\r\n"
ODD = INFER.replace(b"tiny", b"t%69ny")
NAMES = ("protocol", "outcome", "client")
Told = Counter[tuple[str, int | str, str]]
Use = Callable[[ServedModel], Awaitable[None]]


@pytest.fixture
def logged(bundle: VerifiedBundle, tmp_path: Path) -> Callable[..., Told]:
    """Runs its argument against a started host; what was logged then. As much was counted."""

    def run(use: Use, **settings: Any) -> Told:
        log, registry = tmp_path / "access.log", CollectorRegistry()
        chosen = ServerSettings(access_log=str(log), **settings)

        async def main() -> None:
            host = ServedModel(bundle, chosen, registry=registry)
            await host.start()
            async with asyncio.timeout(60):
                await use(host)
            await host.stop()

        asyncio.run(main())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        counts = {
            tuple(sample.labels[name] for name in NAMES): int(sample.value)
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == "mlctl_requests_total"
        }
        shown = Counter((line["protocol"], line["code"], line["client"] or "") for line in lines)
        assert shown == counts
        return Counter((line["protocol"], line["status"], line["code"]) for line in lines)

    return run


async def status(port: int, content: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    found = int((await reader.readuntil(b"\r\n")).split()[1])
    writer.transport.abort()
    return found


def test_rejections__over_http__are_logged_and_counted(logged: Callable[..., Told]) -> None:
    refused = [
        (401, INFER + b"content-length: 5\r\n\r\n"),
        (401, ODD + b"content-length: 5\r\n\r\n"),
        (413, INFER + b"authorization: Bearer %b\r\ncontent-length: 9999\r\n\r\n" % TOKEN.encode()),
        (431, INFER + b"".join(b"x: %d\r\n" % number for number in range(200))),
        (400, b"no HTTP at all\r\n\r\n"),
        (408, INFER),
    ]

    async def use(host: ServedModel) -> None:
        inference = InferHandler(host)
        app = gated(V2App(host, inference), inference, host)
        limits = {"head_seconds": 0.2, "max_connections": 1}
        async with listening(app, type("Short", (infer_protocol(inference),), limits)) as server:
            for expected, content in refused:
                assert await status(server.port, content) == expected
                await until(lambda: not server.state.connections)
            _, idle = await asyncio.open_connection("127.0.0.1", server.port)
            await until(lambda: server.state.connections)
            assert await status(server.port, b"") == 503
            idle.transport.abort()

    assert logged(use, token=SecretStr(TOKEN), max_body_bytes=1000) == {
        ("http", 401, "unauthenticated"): 2,
        ("http", 413, "payload_too_large"): 1,
        ("http", 431, "payload_too_large"): 1,
        ("http", 400, "invalid_input"): 1,
        ("http", 408, "deadline_exceeded"): 1,
        ("http", 503, "queue_full"): 1,
    }


def test_rejections__over_grpc__are_logged_and_counted(logged: Callable[..., Told]) -> None:
    async def use(host: ServedModel) -> None:
        server = GrpcServer(host, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            with pytest.raises(grpc.aio.AioRpcError, match="missing or invalid bearer token"):
                await call(b"")
            with pytest.raises(grpc.aio.AioRpcError, match="not a ModelInferRequest"):
                await call(b"\xff", metadata=metadata)
            with Hold(host.inflight) as other:
                other.grow(host.inflight.limit)
                with pytest.raises(grpc.aio.AioRpcError, match="in flight"):
                    await call(bytes(10), metadata=metadata)
        await server.stop(1)

    assert logged(use, token=SecretStr(TOKEN)) == {
        ("grpc", "UNAUTHENTICATED", "unauthenticated"): 1,
        ("grpc", "INVALID_ARGUMENT", "invalid_input"): 1,
        ("grpc", "RESOURCE_EXHAUSTED", "queue_full"): 1,
    }
