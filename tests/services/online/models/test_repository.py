"""Two models in one process: told apart by every protocol, batched and counted by themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import BentoContents, combine_bundles
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.declaration import predict_routes
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.repository import ModelRepository
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.bundles import expected, make_bundle
from tests.support.listening import listening, until

SCALES = {"double": 2.0, "triple": 3.0}
ROUNDS = 6
Use = Callable[[ModelRepository], Awaitable[None]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> BentoContents:
    folder = tmp_path_factory.mktemp("several")
    bundles = [make_bundle(folder / name, name=name, scale=by) for name, by in SCALES.items()]
    return combine_bundles(bundles, "shop")


def serve(packed: BentoContents, use: Use, **settings: Any) -> CollectorRegistry:
    """Run `use` with both models started."""
    registry = CollectorRegistry()

    async def main() -> None:
        hosts = ModelRepository(packed, ServerSettings(**settings), registry=registry)
        await hosts.start()
        try:
            async with asyncio.timeout(60):
                await use(hosts)
        finally:
            await hosts.stop()

    asyncio.run(main())
    return registry


def answered(registry: CollectorRegistry, model: str, protocol: str, outcome: str = "ok") -> float:
    labels = {"model": model, "protocol": protocol, "outcome": outcome}
    return registry.get_sample_value("mlctl_requests_total", labels) or 0.0


def rows(number: int) -> np.ndarray:
    return np.arange(4, dtype=np.float32).reshape(1, 4) + np.float32(number)


def test_repository__two_models_on_one_connection__both_answer(packed: BentoContents) -> None:
    async def ask(client: httpx.AsyncClient, name: str, number: int) -> None:
        x = rows(number)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x.ravel().tolist()}
        answer = (await client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})).json()
        assert answer["model_version"] == digests[name]
        assert answer["outputs"][0]["data"] == expected(x, scale=SCALES[name]).ravel().tolist()

    async def use(hosts: ModelRepository) -> None:
        inferences = [InferHandler(host) for host in hosts.models]
        protocol = infer_protocol(*inferences)
        async with (
            listening(V2App(hosts, *inferences), protocol) as server,
            httpx.AsyncClient(
                base_url=server.url, limits=httpx.Limits(max_connections=1)
            ) as client,
        ):
            for number in range(ROUNDS):
                for name in ("double", "triple", "triple"):
                    await ask(client, name, number)
            # By now the connection is not looked at any more, but knows what it knew.
            for number in range(ROUNDS):
                for name in SCALES:
                    await ask(client, name, number)

    digests = {bundle.manifest.name: bundle.digest for bundle in packed.bundles}
    registry = serve(packed, use)
    assert answered(registry, "double", "http") == 2 * ROUNDS
    assert answered(registry, "triple", "http") == 3 * ROUNDS
    assert registry.get_sample_value("mlctl_batch_rows_sum", {"model": "triple"}) == 3 * ROUNDS


def test_repository__index_metadata_and_metrics__list_each_model(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        app = V2App(hosts, *[InferHandler(host) for host in hosts.models])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            index = (await client.post("/v2/repository/index")).json()
            assert [(each["name"], each["state"]) for each in index] == [
                ("double", "READY"), ("triple", "READY"),
            ]  # fmt: skip
            for host in hosts.models:
                told = (await client.get(f"/v2/models/{host.name}")).json()
                assert told["versions"] == [host.digest]
                assert (await client.get(f"/v2/models/{host.name}/config")).status_code == 200
            together = (await client.get("/v2/models/shop")).json()
            assert together["versions"] == [packed.digest]
            assert together["inputs"] == together["outputs"] == []
            stats = (await client.get("/v2/models/stats")).json()["model_stats"]
            assert [each["name"] for each in stats] == ["double", "triple"]
            refused = await client.post("/v2/models/shop/infer", json={})
            assert refused.status_code == 404
            assert refused.json()["error"].startswith("'shop' is several models here")
            hosts.models[1].drain()
            for path, status in {
                "/v2/models/double/ready": 200, "/v2/models/triple/ready": 503,
                "/v2/models/shop/ready": 503, "/v2/health/ready": 503, "/v2/health/live": 200,
            }.items():  # fmt: skip
                assert (await client.get(path)).status_code == status
            assert hosts.state == "draining"

    registry = serve(packed, use)
    assert answered(registry, "double", "http", "model_not_found") == 1
    with pytest.raises(MlctlError, match="no model 'other' here; this server has 'double', "):
        ModelRepository(packed, ServerSettings(), registry=CollectorRegistry()).find("other")


def test_repository__two_models_over_grpc__both_answer(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        server = GrpcServer(hosts, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for number in range(ROUNDS):
                for name in SCALES:
                    answer = await call(channel, "ModelInfer", request(name, number))
                    assert answer.model_version == hosts.find(name).digest
                    found = np.frombuffer(answer.raw_output_contents[0], "<f4")
                    assert found.tolist() == expected(rows(number), scale=SCALES[name])[0].tolist()
            told = await call(
                channel, "ModelMetadata", methods()["ModelMetadata"].request(name="shop")
            )
            assert list(told.versions) == [packed.digest]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, "ModelInfer", request("other", 0))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            stream: Any = channel.stream_stream(
                f"/{SERVICE}/ModelStreamInfer",
                request_serializer=lambda each: each.SerializeToString(),
                response_deserializer=methods()["ModelStreamInfer"].response.FromString,
            )([request("triple", 1), request("double", 1), request("other", 1)])
            pieces = [piece async for piece in stream]
            names = [piece.infer_response.model_name for piece in pieces[:2]]
            assert names == ["triple", "double"]
            assert "no model 'other'" in pieces[2].error_message
        await server.stop(1)

    registry = serve(packed, use)
    assert answered(registry, "triple", "grpc") == ROUNDS + 1
    assert answered(registry, "double", "grpc") == ROUNDS + 1
    assert answered(registry, "double", "grpc", "model_not_found") == 2


def test_repository__two_models__each_has_a_typed_service(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        server = GrpcServer(hosts, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for name, scale in SCALES.items():
                ask: Any = channel.unary_unary(f"/mlctl.models.{name}.v1.Predictor/Predict")
                # Field 11 with 16 bytes of packed floats, and so it is in the answer.
                answer = await ask(b"\x5a\x10" + rows(1).tobytes(), timeout=20)
                found = answer.partition(b"\x5a\x10")[2][:16]
                wanted = expected(rows(1), scale=scale).astype("<f4")
                assert found == wanted.tobytes()
                assert hosts.find(name).digest.encode() in answer
        await server.stop(1)

    registry = serve(packed, use)
    assert [answered(registry, name, "grpc") for name in SCALES] == [1, 1]


def request(name: str, number: int) -> Any:
    message = methods()["ModelInfer"].request(model_name=name)
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(rows(number).tobytes())
    return message


async def call(channel: grpc.aio.Channel, name: str, message: Any) -> Any:
    method = methods()[name]
    return await channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=method.response.FromString,
    )(message, timeout=20)


def test_repository__one_model_hangs__the_other_answers(packed: BentoContents) -> None:
    released = threading.Event()

    async def use(hosts: ModelRepository) -> None:
        slow, quick = hosts.models
        batching: Any = slow._batching
        batching._inline = False
        run = batching._model.run

        def wait(inputs: dict[str, np.ndarray]) -> Any:
            released.wait(50)
            return run(inputs)

        batching._model.run = wait
        stuck = slow.infer({"x": rows(0)})
        try:
            await until(lambda: not hosts.live)
            assert (slow.state, quick.state, hosts.ready) == ("hung", "ready", False)
            answer = await quick.infer({"x": rows(1)})
            assert answer.outputs["y"].tolist() == expected(rows(1), scale=3.0).tolist()
            hosts.abandon()
            with pytest.raises(MlctlError) as caught:
                await stuck
            assert caught.value.code is ErrorCode.UNAVAILABLE
        finally:
            released.set()

    registry = serve(packed, use, hang_s=0.05)
    assert registry.get_sample_value("mlctl_hung_workers", {"model": "double"}) == 1
    assert registry.get_sample_value("mlctl_hung_workers", {"model": "triple"}) == 0


def test_repository__golden_rows_fail__names_the_model(
    packed: BentoContents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.bundles.expected", lambda x, **_: x)
    wrong = combine_bundles(
        [*packed.bundles, make_bundle(tmp_path / "wrong", name="wrong")], "shop"
    )
    hosts = ModelRepository(wrong, ServerSettings(), registry=CollectorRegistry())

    async def start() -> None:
        try:
            await hosts.start()
        finally:
            await hosts.stop()

    with pytest.raises(MlctlError, match="model 'wrong': output 'y' of the golden rows") as caught:
        asyncio.run(start())
    assert caught.value.code is ErrorCode.PARITY_FAILED
    assert not hosts.ready


def test_repository__drained__drains_each_model(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        assert hosts.ready
        hosts.drain()
        assert not any(host.ready for host in hosts.models)
        assert [*predict_routes(hosts.models)] == ["/predict", "/predict/double", "/predict/triple"]

    serve(packed, use)
