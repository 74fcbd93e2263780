"""ModelStreamInfer, as tritonclient speaks it and on a bare channel."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.batching.streaming import AnswerStream
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from mlctl.services.protocol.priority import Priority
from tests.support.listening import until
from tests.support.streams import code_of, counting_row, make_stream_bundle

GRPC: Any = tritonclient.grpc
AIO: Any = tritonclient.grpc.aio
METHOD = methods()["ModelStreamInfer"]
Use = Callable[[GrpcServer, ServedModel, ModuleType], Awaitable[None]]


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_stream_bundle(tmp_path_factory.mktemp("stream") / "bundle")


def serve(bundle: VerifiedBundle, use: Use, **settings: Any) -> CollectorRegistry:
    """Run `use` with a started server."""
    registry = CollectorRegistry()

    async def main() -> None:
        host = ServedModel(bundle, ServerSettings(**settings), registry=registry)
        await host.start()
        code = code_of(bundle)
        for record in (code.made, code.closed, code.gates):
            record.clear()
        server = GrpcServer(host, "127.0.0.1", 0)
        await server.start()
        async with asyncio.timeout(60):
            await use(server, host, code)
        await server.stop(1)
        await host.stop()

    asyncio.run(main())
    return registry


def counted(registry: CollectorRegistry, outcome: str) -> float | None:
    labels = {"model": "tiny", "protocol": "grpc", "outcome": outcome}
    return registry.get_sample_value("mlctl_requests_total", labels)


def inputs(pieces: int) -> list[Any]:
    tensor = GRPC.InferInput("x", [1, 4], "FP32")
    return [tensor.set_data_from_numpy(np.array([counting_row(pieces)], np.float32))]


def message(pieces: int, request_id: str = "", **values: Any) -> Any:
    request = METHOD.request(model_name="tiny", id=request_id, **values)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.array([counting_row(pieces)], "<f4").tobytes())
    return request


def opened(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> Any:
    """A stream on a bare channel."""
    return channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer",
        request_serializer=lambda given: (
            given if isinstance(given, bytes) else given.SerializeToString()
        ),
        response_deserializer=METHOD.response.FromString,
    )(metadata=metadata)


def test_stream_infer__tritonclient__gets_the_parts_in_order(counting: VerifiedBundle) -> None:
    found: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def talk(port: int) -> None:
        with GRPC.InferenceServerClient(f"127.0.0.1:{port}") as client:
            client.start_stream(lambda result, error: found.put((result, error)))
            for number, pieces in enumerate((3, 1)):
                client.async_stream_infer(
                    "tiny",
                    inputs(pieces),
                    request_id=str(number),
                    enable_empty_final_response=True,
                )
            client.async_stream_infer("other", inputs(1), request_id="2")
            for number, expected in (
                *((0, [step]) for step in range(3)),
                (0, None),
                (1, [0]),
                (1, None),
            ):
                result, error = found.get(timeout=30)
                assert error is None
                response = result.get_response()
                assert response.id == str(number)
                assert response.parameters["triton_final_response"].bool_param == (not expected)
                step = result.as_numpy("step")
                assert (step is None) if expected is None else step.tolist() == [expected]
            _, error = found.get(timeout=30)
            assert "other" in error.message()
            client.stop_stream()

    async def use(server: GrpcServer, _host: ServedModel, _code: ModuleType) -> None:
        await asyncio.to_thread(talk, server.port)

    registry = serve(counting, use)
    assert (counted(registry, "ok"), counted(registry, "model_not_found")) == (2, 1)


def test_stream_infer__asyncio_tritonclient__gets_the_parts_in_order(
    counting: VerifiedBundle,
) -> None:
    async def ask() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "tiny", "inputs": inputs(4), "request_id": "mine"}

    async def use(server: GrpcServer, _host: ServedModel, _code: ModuleType) -> None:
        async with AIO.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            answers = [answer async for answer in client.stream_infer(ask())]
            assert all(error is None for _, error in answers)
            assert [result.as_numpy("step").item() for result, _ in answers] == [0, 1, 2, 3]

    serve(counting, use)


def test_stream_infer__one_request_fails__stream_continues(counting: VerifiedBundle) -> None:
    async def use(server: GrpcServer, _host: ServedModel, _code: ModuleType) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stream = opened(channel)
            wrong = message(1, "wrong")
            wrong.inputs[0].shape[0] = 7
            for request in (b"\xff\xff", wrong, message(100, "late"), message(1, "good")):
                await stream.write(request)
            await stream.done_writing()
            answers = [answer async for answer in stream]
        failed = [answer for answer in answers if answer.error_message]
        told = [
            (answer.infer_response.id, answer.infer_response.parameters["mlctl_code"].string_param)
            for answer in failed
        ]
        assert told == [
            ("", "invalid_input"), ("wrong", "invalid_input"), ("late", "internal"),
        ]  # fmt: skip
        assert "secret" not in failed[-1].error_message
        assert len(answers) == 3 + 70 + 1
        assert answers[-1].infer_response.id == "good"

    serve(counting, use)


def test_stream_infer__priority_in_metadata__overrides_the_requests(
    counting: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[Priority] = []

    async def use(server: GrpcServer, host: ServedModel, _code: ModuleType) -> None:
        stream_of = host.stream

        def noted(inputs: Any, timeout: float | None, priority: Priority) -> AnswerStream:
            lanes.append(priority)
            return stream_of(inputs, timeout, priority)

        monkeypatch.setattr(host, "stream", noted)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for named in ([], [("mlctl-priority", "high")], [("mlctl-priority", "2")]):
                stream = opened(channel, *named)
                for asked in ("normal", "high"):
                    request = message(1)
                    request.parameters["priority"].string_param = asked
                    await stream.write(request)
                await stream.done_writing()
                assert all([not answer.error_message async for answer in stream])
            wrong = opened(channel, ("mlctl-priority", "highest"))
            await wrong.write(message(1))
            assert "high or normal" in (await wrong.read()).error_message
            wrong.cancel()

    serve(counting, use)
    high, normal = Priority.HIGH, Priority.NORMAL
    assert lanes == [normal, high, high, high, normal, normal]


def test_stream_infer__too_large_message__ends_the_stream(
    counting: VerifiedBundle,
) -> None:
    async def use(server: GrpcServer, host: ServedModel, _code: ModuleType) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            before = len(asyncio.all_tasks())
            stream = opened(channel)
            await stream.write(message(1))
            assert not (await stream.read()).error_message
            await stream.write(bytes(20_000))
            with pytest.raises(grpc.aio.AioRpcError, match="larger than"):
                await stream.read()
            await until(lambda: len(asyncio.all_tasks()) <= before)
            assert host.inflight.used == 0

    serve(counting, use, max_body_bytes=10_000)


@pytest.mark.parametrize("hard", [False, True])
def test_stream_infer__client_leaves__work_ends(counting: VerifiedBundle, hard: bool) -> None:
    async def use(server: GrpcServer, host: ServedModel, code: ModuleType) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stream = opened(channel)
            await stream.write(message(1_000_000))
            assert not (await stream.read()).error_message
            if not hard:
                stream.cancel()
            # else the whole channel is closed
        await until(lambda: code.closed)
        made = len(code.made)
        assert 0 < made < 1_000_000
        row = np.array([counting_row(1)], np.float32)
        await host.infer({"x": row}, 20)
        assert len(code.made) == made + 1

    assert counted(serve(counting, use), "gone") == 1
