"""Clients that declare much and send little take no memory budget from anybody else."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE
from tests.services.online.grpc.http2.conftest import Raw, head, infer_message
from tests.support.listening import Listening, listening, until

PATH = "/v2/models/tiny/infer"
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
DECLARED = 64 << 20
# The declared bytes of either attack are more than the budget of 1 GiB.
CONNECTIONS = 16
STREAMS = 57
# Far below the deadline of 30 s, for which the budget would be taken.
QUICK_SECONDS = 10


async def answered(http: Listening, rpc: GrpcServer) -> None:
    """A normal request of each protocol is answered quickly."""
    async with asyncio.timeout(QUICK_SECONDS):
        async with httpx.AsyncClient(base_url=http.url, timeout=QUICK_SECONDS) as client:
            for headers in ({}, {"Expect": "100-continue"}):
                answer = await client.post(PATH, content=BODY, headers=headers)
                assert answer.status_code == 200, answer.text
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rpc.port}", options) as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            assert await call(infer_message().SerializeToString(), timeout=QUICK_SECONDS)


def request_head(length: int, headers: str = "") -> bytes:
    text = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n{headers}\r\n"
    return text.encode()


async def declare_over_http(http: Listening, host: ServedModel) -> list[asyncio.StreamWriter]:
    """Announce bodies, half of them to the application behind the protocol, and send none."""
    writers = []
    for number in range(CONNECTIONS):
        _, writer = await asyncio.open_connection("127.0.0.1", http.port)
        expect = "Expect: 100-continue\r\n" if number % 2 else ""
        writer.write(request_head(DECLARED, expect))
        writers.append(writer)
    begun = lambda each: each.cycle is not None and each.cycle.more_body  # noqa: E731
    await until(lambda: sum(map(begun, http.state.connections)) == CONNECTIONS)
    assert host.inflight.used == 0
    return writers


async def declare_over_grpc(rpc: GrpcServer, host: ServedModel) -> Raw:
    raw = await Raw.open(rpc.port)
    for _ in range(STREAMS):
        raw.ask(head(), b"\0" + DECLARED.to_bytes(4, "big"), end=False)
    raw.core.ping(b"received")
    raw.flush()
    await raw.until(lambda: any(type(each).__name__ == "PingAckReceived" for each in raw.events))
    assert 0 < host.inflight.used < 64 << 10
    return raw


@asynccontextmanager
async def serving(
    bundle: VerifiedBundle, **settings: Any
) -> AsyncIterator[tuple[ServedModel, InferHandler, Listening, GrpcServer]]:
    host = ServedModel(bundle, ServerSettings(**settings), registry=CollectorRegistry())
    await host.start()
    inference = InferHandler(host)
    rpc = GrpcServer(host, "127.0.0.1", 0)
    await rpc.start()
    async with listening(V2App(host, inference), infer_protocol(inference)) as http:
        yield host, inference, http, rpc
        await until(lambda: host.inflight.used == 0)
    await rpc.stop(1)
    await host.stop()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_memory_budget__lengths_declared_but_not_sent__answers_everybody_else(
    shared_bundle: VerifiedBundle, protocol: str
) -> None:
    async with serving(shared_bundle) as (host, _, http, rpc):
        if protocol == "http":
            writers = await declare_over_http(http, host)
            await answered(http, rpc)
            for writer in writers:
                writer.close()
        else:
            raw = await declare_over_grpc(rpc, host)
            await answered(http, rpc)
            raw.close()


async def test_memory_budget__arrived_bytes_exceed_it__rejects_that_request_and_releases_it(
    shared_bundle: VerifiedBundle,
) -> None:
    async with serving(shared_bundle, max_inflight_bytes=1000) as (host, _, http, rpc):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(request_head(5000) + bytes(900))
        await until(lambda: host.inflight.used == 900)
        raw = await Raw.open(rpc.port)
        stream = raw.ask(head(), b"\0" + (5000).to_bytes(4, "big") + bytes(500))
        assert (await raw.trailers(stream))[b"grpc-status"] == b"8"
        assert host.inflight.used == 900
        writer.write(bytes(101))
        assert b" 503 " in await reader.readline()
        assert host.inflight.used == 0
        await answered(http, rpc)
        raw.close()
        writer.close()


async def test_memory_budget__compressed_body__is_charged_as_it_inflates(
    shared_bundle: VerifiedBundle,
) -> None:
    body = gzip.compress(BODY + b" " * 2000)
    encoded = {"Content-Encoding": "gzip"}

    async with (
        serving(shared_bundle, max_inflight_bytes=2000) as (host, _, http, _),
        httpx.AsyncClient(base_url=http.url) as client,
    ):
        rejected = await client.post(PATH, content=body, headers=encoded)
        assert (rejected.status_code, rejected.json()["code"]) == (503, "queue_full")
        assert host.inflight.used == 0
        host.inflight.limit = 3000
        taken = await client.post(PATH, content=body, headers=encoded)
        assert taken.status_code == 200, taken.text


async def test_decoder__one_large_body_is_being_read__others_are_answered(
    shared_bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = BODY[:-1] + b" " * (1 << 20) + b"}"
    encoded = {"Content-Encoding": "gzip"}
    reading, go_on = threading.Event(), threading.Event()

    async with (
        serving(shared_bundle) as (_, inference, http, _),
        httpx.AsyncClient(base_url=http.url) as client,
    ):
        codec: Any = inference._codec
        decode = codec.decode

        def slow(body: bytes, length: int | None) -> Any:
            if body == large:
                reading.set()
                assert go_on.wait(60)
            return decode(body, length)

        monkeypatch.setattr(codec, "decode", slow)
        first = asyncio.create_task(client.post(PATH, content=large))
        await until(reading.is_set)
        try:
            async with asyncio.timeout(QUICK_SECONDS):
                small = gzip.compress(BODY)
                other = await client.post(PATH, content=small, headers=encoded)
        finally:
            go_on.set()
        assert other.status_code == 200
        assert (await first).status_code == 200
