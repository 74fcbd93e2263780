"""gRPC's own clients and Triton's."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio

from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from tests.services.online.grpc.http2.conftest import INFER, Serve, X, infer_message

TRITON: Any = tritonclient.grpc
AIO: Any = tritonclient.grpc.aio


def asked() -> list[Any]:
    return [TRITON.InferInput("x", [1, 4], "FP32").set_data_from_numpy(X)]


def test_clients__tritonclient__gets_metadata_and_answers(serve: Serve) -> None:
    def talk(port: int) -> None:
        with TRITON.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_server_ready()
            assert client.get_model_metadata("tiny").name == "tiny"
            for packing in (None, "gzip", "deflate"):
                answer = client.infer("tiny", asked(), compression_algorithm=packing)
                assert answer.as_numpy("y").tolist() == [[12, 14, 16, 18]]
            with pytest.raises(TRITON.InferenceServerException, match="other"):
                client.infer("other", asked())

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        await asyncio.to_thread(talk, server.port)
        async with AIO.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            answers = await asyncio.gather(*(client.infer("tiny", asked()) for _ in range(300)))
            assert all(np.array_equal(a.as_numpy("y"), [[12, 14, 16, 18]]) for a in answers)

    serve(use)


def test_clients__tritonclient_with_ids__gets_them_back(serve: Serve) -> None:
    async def use(server: GrpcServer, _host: ServedModel) -> None:
        async with AIO.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            await client.infer("tiny", asked(), request_id="first")
            texts = [f"call-{number}" for number in range(300)]
            answers = await asyncio.gather(
                *(client.infer("tiny", asked(), request_id=text) for text in texts)
            )
        assert [answer.get_response().id for answer in answers] == texts

    serve(use)


def test_clients__statuses_of_calls__are_those_of_grpc(serve: Serve) -> None:
    whole = infer_message().SerializeToString()
    code = grpc.StatusCode
    infer, check = INFER.decode(), "/grpc.health.v1.Health/Check"
    ids = {"metadata": [("x-request-id", "7"), ("x-bin", b"\0\xff")]}
    gzip, deflate = (
        {"compression": each} for each in (grpc.Compression.Gzip, grpc.Compression.Deflate)
    )
    cases: list[tuple[str, bytes, dict[str, Any], grpc.StatusCode, str | None]] = [
        (infer, whole, {}, code.OK, None),
        (infer, whole, ids, code.OK, None),
        (infer, whole, gzip, code.OK, None),
        (infer, b"", {}, code.NOT_FOUND, "model_not_found"),
        (infer, b"\xff", {}, code.INVALID_ARGUMENT, "invalid_input"),
        (infer, bytes(20_000), {}, code.RESOURCE_EXHAUSTED, "payload_too_large"),
        (infer, bytes(20_000), deflate, code.RESOURCE_EXHAUSTED, "payload_too_large"),
        ("/inference.GRPCInferenceService/Nothing", whole, {}, code.UNIMPLEMENTED, None),
        (check, b"\x0a\x05other", {}, code.NOT_FOUND, "not_found"),
        (check, b"", {}, code.OK, None),
    ]

    async def use(server: GrpcServer, _host: ServedModel) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for path, message, options, expected, ours in cases:
                method: Any = channel.unary_unary(path)
                call = method(message, timeout=20, **options)
                assert await call.code() is expected
                assert dict(await call.trailing_metadata() or ()).get("mlctl-code") == ours

    serve(use, max_body_bytes=10_000)
