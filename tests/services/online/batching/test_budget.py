"""What is in flight is bounded on every way in, and nothing is held afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode
from mlctl.services.online.batching.admission import BusyError, Hold, Inflight
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.http.predict import PredictApp
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.listening import listening, until

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=40))
def test_inflight__any_steps__stays_within_the_limit(
    steps: list[tuple[int, int]],
) -> None:
    inflight = Inflight(100)
    holds = [Hold(inflight) for _ in range(4)]
    for index, size in steps:
        before = inflight.used
        if size == 0:
            holds[index].release()
            continue
        try:
            holds[index].grow(size)
        except BusyError as error:
            assert inflight.used == before
            assert (error.code, error.retry_after) == (ErrorCode.QUEUE_FULL, 1.0)
        assert inflight.used == sum(hold.size for hold in holds) <= 100
    for hold in holds:
        hold.release()
    assert inflight.used == 0


async def test_http_infer__requests_in_flight__are_bounded_and_released(
    bundle: VerifiedBundle,
) -> None:
    settings = ServerSettings(max_inflight_bytes=2 * len(BODY) - 2)
    host = ServedModel(bundle, settings, registry=CollectorRegistry())
    await host.start()
    inference = InferHandler(host)
    async with listening(V2App(host, inference), infer_protocol(inference)) as server:
        for expects in (False, True):
            await ask(host, server.url, server.port, expects=expects)
    await host.stop()


async def ask(host: ServedModel, url: str, port: int, *, expects: bool) -> None:
    """A body of which most has arrived leaves no room for a second one, declared or chunked."""
    head = f"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(BODY)}\r\n"
    expect = b"Expect: 100-continue\r\n" if expects else b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + expect + b"\r\n" + BODY[:-1])
    await until(lambda: host.inflight.used == len(BODY) - 1)
    async with httpx.AsyncClient(base_url=url) as client:
        path = "/v2/models/tiny/infer"
        headers = {"Expect": "100-continue"} if expects else {}
        for content in (BODY, pieces()):
            refused = await client.post(path, content=content, headers=headers)
            assert refused.status_code == 503, refused.text
            assert refused.json()["code"] == "queue_full"
            assert refused.headers["retry-after"] == "1"
        writer.write(BODY[-1:])
        answer = await reader.readuntil(b'"data":[12.0,14.0,16.0,18.0]')
        assert b"200 OK" in answer
        await until(lambda: host.inflight.used == 0)
        assert (await client.post(path, content=BODY, headers=headers)).status_code == 200
        assert host.inflight.used == 0
    writer.close()


async def pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(BODY), 20):
        yield BODY[start : start + 20]


async def test_http_infer__client_disconnects__releases_its_bytes(bundle: VerifiedBundle) -> None:
    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    inference = InferHandler(host)
    async with listening(V2App(host, inference), infer_protocol(inference)) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: t\r\n")
        writer.write(b"Content-Length: 500\r\n\r\n{")
        await until(lambda: host.inflight.used == 1)
        writer.close()
        await until(lambda: host.inflight.used == 0)
    await host.stop()


@pytest.mark.parametrize("streamed", [False, True])
async def test_predict__memory_budget_is_used_up__is_rejected(
    bundle: VerifiedBundle, streamed: bool
) -> None:
    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    host.inflight.limit = 100
    transport = httpx.ASGITransport(PredictApp(host))
    content = b'{"x": [[1, 2, 3, 4]]}' + b" " * 50
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        with Hold(host.inflight) as other:
            other.grow(50)
            rejected = await client.post("/predict", content=chunks() if streamed else content)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "1")
        answered = await client.post("/predict", content=chunks() if streamed else content)
        assert answered.json() == [[12, 14, 16, 18]]
    assert host.inflight.used == 0
    await host.stop()


async def test_grpc_infer__requests_in_flight__are_bounded_and_released(
    bundle: VerifiedBundle,
) -> None:
    request = methods()["ModelInfer"].request(model_name="tiny")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))

    settings = ServerSettings(max_inflight_bytes=1000, max_connections=1)
    host = ServedModel(bundle, settings, registry=CollectorRegistry())
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    target, options = f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        await call(request.SerializeToString())
        with Hold(host.inflight) as other:
            other.grow(990)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request.SerializeToString())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(caught.value.trailing_metadata() or ())["retry-after"] == "1"
        async with grpc.aio.insecure_channel(target, options) as second:
            live: Any = second.unary_unary(f"/{SERVICE}/ServerLive")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await live(b"", timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await call(request.SerializeToString())
        assert host.inflight.used == 0
    await server.stop(1)
    await host.stop()
