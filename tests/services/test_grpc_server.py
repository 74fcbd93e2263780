from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from bundle.verify import VerifiedBundle
from services.batcher import QueueFullError
from services.batching import Answer
from services.grpc_server import GrpcServer
from services.host import ModelHost
from services.settings import Settings
from services.v2_messages import SERVICE, methods

Call = Callable[..., Any]
X = np.array([[1, 2, 3, 4]], dtype="<f4")


def with_server(
    bundle: VerifiedBundle, use: Callable[[Call, ModelHost], Awaitable[None]]
) -> CollectorRegistry:
    """Run `use` with a function that calls a started server."""
    registry = CollectorRegistry()

    async def main() -> None:
        host = ModelHost(bundle, Settings(max_body_bytes=10_000), registry=registry)
        await host.start()
        server = GrpcServer(host, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:

            def call(name: str, message: Any, timeout: float = 20) -> Any:
                method = methods()[name]
                send = channel.unary_unary(
                    f"/{SERVICE}/{name}",
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.response.FromString,
                )
                return send(message, timeout=timeout)

            await use(call, host)
        await server.stop(1)
        await host.stop()

    asyncio.run(main())
    return registry


def infer(name: str = "tiny", version: str = "", data: bytes = X.tobytes()) -> Any:
    message = methods()["ModelInfer"].request(model_name=name, model_version=version)
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(data)
    return message


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def test_the_six_methods_answer(bundle: VerifiedBundle) -> None:
    def message(method: str, **values: str) -> Any:
        return methods()[method].request(**values)

    async def use(call: Call, _host: ModelHost) -> None:
        assert (await call("ServerLive", message("ServerLive"))).live
        assert (await call("ServerReady", message("ServerReady"))).ready
        assert (await call("ModelReady", message("ModelReady", name="tiny"))).ready
        assert (await call("ServerMetadata", message("ServerMetadata"))).name == "mlctl"
        told = await call("ModelMetadata", message("ModelMetadata", name="tiny"))
        assert list(told.versions) == [bundle.digest]
        assert (told.inputs[0].datatype, list(told.outputs[0].shape)) == ("FP32", [-1, 4])
        answer = await call("ModelInfer", infer(version=bundle.digest))
        assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [12, 14, 16, 18]

    registry = with_server(bundle, use)
    labels = {"model": "tiny", "protocol": "grpc", "outcome": "ok"}
    assert registry.get_sample_value("mlctl_requests_total", labels) == 1


def test_errors_have_the_tables_status(bundle: VerifiedBundle) -> None:
    async def use(call: Call, _host: ModelHost) -> None:
        wrong = await refused(call("ModelInfer", infer(data=b"short")))
        assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'x'" in str(wrong.details())
        other = await refused(call("ModelInfer", infer("other")))
        assert other.code() is grpc.StatusCode.NOT_FOUND
        missing = await refused(
            call("ModelReady", methods()["ModelReady"].request(name="tiny", version="1"))
        )
        assert missing.code() is grpc.StatusCode.NOT_FOUND
        huge = await refused(call("ModelInfer", infer(data=b"x" * 20_000)))
        assert huge.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_server(bundle, use)


def test_overload_and_surprises(bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(call: Call, host: ModelHost) -> None:
        def raising(error: Exception) -> Callable[..., Any]:
            def infer_instead(*_arguments: Any) -> None:
                raise error

            return infer_instead

        monkeypatch.setattr(host, "infer", raising(QueueFullError(8, 8, 2.3)))
        full = await refused(call("ModelInfer", infer()))
        assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(full.trailing_metadata() or {})["retry-after"] == "3"
        monkeypatch.setattr(host, "infer", raising(RuntimeError("/srv/secret")))
        broken = await refused(call("ModelInfer", infer()))
        assert broken.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(broken.details())

    with_server(bundle, use)


def test_a_caller_that_cancels_withdraws_its_request(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(call: Call, host: ModelHost) -> None:
        asked = asyncio.get_running_loop().create_future()
        gone = asyncio.Event()

        def never(*_arguments: Any) -> asyncio.Future[Answer]:
            pending: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            pending.add_done_callback(lambda _: gone.set())
            asked.set_result(pending)
            return pending

        monkeypatch.setattr(host, "infer", never)
        ongoing = call("ModelInfer", infer())
        pending = await asyncio.wait_for(asked, 20)
        ongoing.cancel()
        await asyncio.wait_for(gone.wait(), 20)
        assert pending.cancelled()

    with_server(bundle, use)
