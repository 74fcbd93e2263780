"""tritonclient: HTTP and gRPC, synchronous and asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from tests.clients.report import Calls, Servers

X = np.linspace(-1, 1, 4000, dtype=np.float32).reshape(1000, 4)
Y = X * 2 + X.sum(axis=1, keepdims=True)
call = Calls("tritonclient")


def tensor(module: Any, **options: Any) -> Any:
    return module.InferInput("x", list(X.shape), "FP32").set_data_from_numpy(X, **options)


def few(module: Any) -> Any:
    """A tensor of so few rows that the queue has room for many of them."""
    return module.InferInput("x", [16, 4], "FP32").set_data_from_numpy(X[:16])


def same(found: Any) -> None:
    y = found.as_numpy("y")
    np.testing.assert_allclose(y, Y[: len(y)], rtol=1e-5, atol=1e-5)


@call("HTTP, JSON and binary tensors")
def _(servers: Servers) -> None:
    with http.InferenceServerClient(servers.tiny) as client:
        for binary in (True, False):
            wanted = [http.InferRequestedOutput("y", binary_data=binary)]
            same(client.infer("tiny", [tensor(http, binary_data=binary)], outputs=wanted))


@call("HTTP, gzip and deflate")
def _(servers: Servers) -> None:
    with http.InferenceServerClient(servers.tiny) as client:
        for coding in ("gzip", "deflate"):
            same(
                client.infer(
                    "tiny",
                    [tensor(http)],
                    request_compression_algorithm=coding,
                    response_compression_algorithm=coding,
                )
            )


@call("HTTP, `async_infer` of 32 requests at once")
def _(servers: Servers) -> None:
    with http.InferenceServerClient(servers.tiny, concurrency=8) as client:
        for each in [client.async_infer("tiny", [few(http)]) for _ in range(32)]:
            same(each.get_result())


@call("HTTP, asyncio")
async def _(servers: Servers) -> None:
    async with http_aio.InferenceServerClient(servers.tiny) as client:
        for each in await asyncio.gather(*(client.infer("tiny", [few(http)]) for _ in range(16))):
            same(each)


@call("health, metadata, configuration, statistics, index")
def _(servers: Servers) -> None:
    for module, address in ((http, servers.tiny), (grpc, servers.tiny_grpc)):
        with module.InferenceServerClient(address) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("tiny")
            client.get_server_metadata()
            client.get_model_metadata("tiny")
            client.get_model_config("tiny")
            client.get_inference_statistics("tiny")
            client.get_model_repository_index()


@call("gRPC, gzip and deflate")
def _(servers: Servers) -> None:
    with grpc.InferenceServerClient(servers.tiny_grpc) as client:
        for coding in (None, "gzip", "deflate"):
            same(client.infer("tiny", [tensor(grpc)], compression_algorithm=coding))


@call("gRPC, streams")
def _(servers: Servers) -> None:
    found: queue.Queue = queue.Queue()
    with grpc.InferenceServerClient(servers.tiny_grpc) as client:
        client.start_stream(lambda result, error: found.put((result, error)))
        for number in range(8):
            client.async_stream_infer("tiny", [tensor(grpc)], request_id=str(number))
        for number in range(8):
            result, error = found.get(timeout=30)
            assert error is None, error
            assert result.get_response().id == str(number)
            same(result)
        client.stop_stream()


@call("gRPC, asyncio and its streams")
async def _(servers: Servers) -> None:
    async with grpc_aio.InferenceServerClient(servers.tiny_grpc) as client:
        same(await client.infer("tiny", [tensor(grpc)]))

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for _ in range(3):
                yield {"model_name": "tiny", "inputs": [tensor(grpc)]}

        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            same(result)


@call("timeouts: client, request and gRPC deadline")
def _(servers: Servers) -> None:
    with http.InferenceServerClient(servers.tiny, network_timeout=30) as client:
        same(client.infer("tiny", [tensor(http)], timeout=10_000_000))
        too_late(lambda: client.infer("tiny", [tensor(http)], timeout=1), "503", "504")
    with grpc.InferenceServerClient(servers.tiny_grpc) as client:
        same(client.infer("tiny", [tensor(grpc)], client_timeout=10))
        too_late(
            lambda: client.infer("tiny", [tensor(grpc)], timeout=1),
            "EXHAUSTED",
            "UNAVAILABLE",
            "DEADLINE",
        )


def too_late(work: Callable[[], object], *statuses: str) -> None:
    """Rejected at once where the server knows how long it takes, else at the deadline."""
    try:
        work()
    except InferenceServerException as error:
        assert any(each in error.status() for each in statuses), error
    else:
        raise AssertionError("a microsecond was enough")


@call("16 threads, a client each")
def _(servers: Servers) -> None:
    def one(_: int) -> None:
        with grpc.InferenceServerClient(servers.tiny_grpc) as client:
            for _ in range(8):
                same(client.infer("tiny", [few(grpc)]))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))


def refused(work: Callable[[], object], *words: str) -> None:
    try:
        work()
    except InferenceServerException as error:
        assert any(word in str(error) for word in words), error
    else:
        raise AssertionError("it was accepted")


@call("shared memory of the system and of CUDA", works=False)
def _(servers: Servers) -> None:
    for module, address in ((http, servers.tiny), (grpc, servers.tiny_grpc)):
        with module.InferenceServerClient(address) as client:
            refused(client.get_system_shared_memory_status, "'system_shared_memory' is not served")
            refused(client.get_cuda_shared_memory_status, "'cuda_shared_memory' is not served")


@call("trace and log settings", works=False)
def _(servers: Servers) -> None:
    for module, address in ((http, servers.tiny), (grpc, servers.tiny_grpc)):
        with module.InferenceServerClient(address) as client:
            refused(client.get_trace_settings, "'trace' is not served")
            refused(client.get_log_settings, "'logging' is not served")


@call("loading and unloading models", works=False)
def _(servers: Servers) -> None:
    for module, address in ((http, servers.tiny), (grpc, servers.tiny_grpc)):
        with module.InferenceServerClient(address) as client:
            refused(lambda: client.load_model("tiny"), "does not load models")
            refused(lambda: client.unload_model("tiny"), "does not unload models")


@call("sequences and classification", works=False)
def _(servers: Servers) -> None:
    with http.InferenceServerClient(servers.tiny) as client:
        refused(lambda: client.infer("tiny", [tensor(http)], sequence_id=7), "not served")
        wanted = [http.InferRequestedOutput("y", class_count=3)]
        refused(lambda: client.infer("tiny", [tensor(http)], outputs=wanted), "not served")


if __name__ == "__main__":
    call.run()
