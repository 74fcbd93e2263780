"""gRPC's own clients and Triton's; grpc.aio's server says what the statuses are to be."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from prometheus_client import CollectorRegistry

from bundle.verify import VerifiedBundle
from services.grpc.server import GrpcServer
from services.host import ModelHost
from services.lean_grpc.desk import InferCall
from services.settings import Settings
from tests.services.lean_grpc.conftest import INFER, Serve, X, infer_message

TRITON: Any = tritonclient.grpc
AIO: Any = tritonclient.grpc.aio


def asked() -> list[Any]:
    return [TRITON.InferInput("x", [1, 4], "FP32").set_data_from_numpy(X)]


def test_tritonclient(serve: Serve) -> None:
    def talk(port: int) -> None:
        with TRITON.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_server_ready()
            assert client.get_model_metadata("tiny").name == "tiny"
            for packing in (None, "gzip", "deflate"):
                answer = client.infer("tiny", asked(), compression_algorithm=packing)
                assert answer.as_numpy("y").tolist() == [[12, 14, 16, 18]]
            with pytest.raises(TRITON.InferenceServerException, match="other"):
                client.infer("other", asked())

    async def use(server: GrpcServer, _host: ModelHost) -> None:
        await asyncio.to_thread(talk, server.port)
        async with AIO.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            answers = await asyncio.gather(*(client.infer("tiny", asked()) for _ in range(300)))
            assert all(np.array_equal(a.as_numpy("y"), [[12, 14, 16, 18]]) for a in answers)

    serve(use)


def test_tritonclient_with_an_id_for_each_call(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, _host: ModelHost) -> None:
        async with AIO.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            await client.infer("tiny", asked(), request_id="first")
            texts = [f"call-{number}" for number in range(300)]
            answers = await asyncio.gather(
                *(client.infer("tiny", asked(), request_id=text) for text in texts)
            )
        assert [answer.get_response().id for answer in answers] == texts
        assert len(taken) > len(texts) / 2  # one that is read in two parts goes the long way

    serve(use)


async def _statuses(bundle: VerifiedBundle, *, lean: bool) -> list[Any]:
    host = ModelHost(
        bundle, Settings(lean_grpc=lean, max_body_bytes=10_000), registry=CollectorRegistry()
    )
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    whole = infer_message().SerializeToString()
    found = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for path, message, options in (
            (INFER.decode(), whole, {}),
            (INFER.decode(), whole, {"metadata": [("x-request-id", "7"), ("x-bin", b"\0\xff")]}),
            (INFER.decode(), whole, {"compression": grpc.Compression.Gzip}),
            (INFER.decode(), b"", {}),
            (INFER.decode(), b"\xff", {}),
            (INFER.decode(), bytes(20_000), {}),
            (INFER.decode(), bytes(20_000), {"compression": grpc.Compression.Deflate}),
            ("/inference.GRPCInferenceService/Nothing", whole, {}),
            ("/grpc.health.v1.Health/Check", b"\x0a\x05other", {}),
            ("/grpc.health.v1.Health/Check", b"", {}),
        ):
            method: Any = channel.unary_unary(path)
            call = method(message, timeout=20, **options)
            code = await call.code()
            trailing = dict(await call.trailing_metadata() or ())
            found.append((path, code, trailing.get("mlctl-code")))
    await server.stop(1)
    await host.stop()
    return found


def test_statuses_are_those_of_grpcs_own_server(shared_bundle: VerifiedBundle) -> None:
    expected = asyncio.run(_statuses(shared_bundle, lean=False))
    found = asyncio.run(_statuses(shared_bundle, lean=True))
    # Its own refusals of sizes come from its core, without a code of ours.
    assert [code for _, code, _ in found] == [code for _, code, _ in expected]
    for (_, _, ours), (_, _, theirs) in zip(found, expected, strict=True):
        assert theirs in (ours, None)
