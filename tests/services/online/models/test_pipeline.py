"""A pipeline served: one more model over every protocol, whose stages batch by themselves."""

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

from mlctl.bento.clients.source import find_source
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import (
    MODELS_FILE,
    BentoContents,
    combine_bundles,
    read_contents,
)
from mlctl.services.layout.scorable import find_scorable
from mlctl.services.online.batching.admission import QueueFullError
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.declaration import predict_routes
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.repository import ModelRepository
from mlctl.services.online.settings import ServerSettings
from tests.services.layout.test_bento_layout import lay_out
from tests.services.online.models.test_repository import answered, call, request, rows, serve
from tests.support.bundles import expected, make_bundle
from tests.support.listening import listening, until

Use = Callable[[ModelRepository], Awaitable[None]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> BentoContents:
    folder = tmp_path_factory.mktemp("stages")
    scales = {"double": 2.0, "triple": 3.0}
    bundles = [make_bundle(folder / name, name=name, scale=by) for name, by in scales.items()]
    return combine_bundles(bundles, "both", ["triple.x=double.y"])


def wanted(x: np.ndarray) -> list[float]:
    answer: list[float] = expected(expected(x), scale=3.0).ravel().tolist()
    return answer


def body(number: int) -> dict[str, Any]:
    x = rows(number)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x.ravel().tolist()}
    return {"inputs": [tensor]}


def test_pipeline__http__answers_as_one_model(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        inferences = [InferHandler(host) for host in hosts.models]
        protocol = infer_protocol(*inferences)
        async with (
            listening(V2App(hosts, *inferences), protocol) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            for number in range(4):
                answer = (await client.post("/v2/models/both/infer", json=body(number))).json()
                assert (answer["model_name"], answer["model_version"]) == ("both", packed.digest)
                assert answer["outputs"][0]["data"] == wanted(rows(number))
            one = (await client.post("/v2/models/triple/infer", json=body(1))).json()
            assert one["outputs"][0]["data"] == expected(rows(1), scale=3.0).ravel().tolist()
            told = (await client.get("/v2/models/both")).json()
            assert told["versions"] == [packed.digest]
            assert [each["name"] for each in told["inputs"] + told["outputs"]] == ["x", "y"]
            assert (await client.get("/v2/models/both/config")).status_code == 200
            index = (await client.post("/v2/repository/index")).json()
            assert [each["name"] for each in index] == ["both", "double", "triple"]
            refused = await client.post("/v2/models/both/infer", json={"inputs": []})
            assert refused.status_code == 400
            hosts.models[2].drain()
            assert (await client.get("/v2/models/both/ready")).status_code == 503
        assert list(predict_routes(hosts.models)) == [
            "/predict", "/predict/both", "/predict/double", "/predict/triple",
        ]  # fmt: skip

    registry = serve(packed, use)
    assert answered(registry, "both", "http") == 4
    assert answered(registry, "both", "http", "invalid_input") == 1
    sums = [
        registry.get_sample_value("mlctl_batch_rows_sum", {"model": name})
        for name in ("double", "triple")
    ]
    assert sums == [4, 5]


def test_pipeline__grpc__answers_as_one_model(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        server = GrpcServer(hosts, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for number in range(4):
                answer = await call(channel, "ModelInfer", request("both", number))
                assert answer.model_version == packed.digest
                found = np.frombuffer(answer.raw_output_contents[0], "<f4").tolist()
                assert found == wanted(rows(number))
            hosts.models[1].max_body_bytes = 10
            with pytest.raises(grpc.aio.AioRpcError, match="limit of 10 bytes"):
                await call(channel, "ModelInfer", request("double", 1))
        await server.stop(1)

    assert answered(serve(packed, use), "both", "grpc") == 4


def test_pipeline__stage_is_full__names_it_and_the_retry_time(packed: BentoContents) -> None:
    full = QueueFullError(5, 4, 2.5)
    hosts = ModelRepository(packed, ServerSettings(), registry=CollectorRegistry())

    def refuse(*_: Any) -> Any:
        raise full

    async def use() -> None:
        await hosts.start()
        both, _, last = hosts.models
        stage: Any = last
        stage.infer = refuse
        with pytest.raises(QueueFullError, match=r"^stage 'triple': 5 rows wait") as caught:
            await both.infer({"x": rows(0)})
        assert caught.value.retry_after == full.retry_after
        assert not full.message.startswith("stage")
        await hosts.stop()

    asyncio.run(use())


def test_pipeline__streamed__answers_in_one_part(packed: BentoContents) -> None:
    async def use(hosts: ModelRepository) -> None:
        pieces = [piece async for piece in hosts.find("both").stream({"x": rows(1)})]
        assert [piece.outputs["y"].ravel().tolist() for piece in pieces] == [wanted(rows(1))]

    serve(packed, use)


def test_pipeline__deadline_cancel_and_stop__reach_the_stages(packed: BentoContents) -> None:
    entered, released = threading.Event(), threading.Event()

    async def use(hosts: ModelRepository) -> None:
        both, _, last = hosts.models
        batching: Any = last._batching
        batching._inline = False
        run = batching._model.run

        def wait(inputs: dict[str, np.ndarray]) -> Any:
            entered.set()
            released.wait(50)
            return run(inputs)

        batching._model.run = wait
        try:
            stuck = both.infer({"x": rows(0)})
            await until(entered.is_set)
            late, left = both.infer({"x": rows(1)}, 0.05), both.infer({"x": rows(1)})
            with pytest.raises(MlctlError, match=r"^stage 'triple': ") as caught:
                await late
            assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
            await until(lambda: last.waiting_rows == 1)
            left.cancel()
            await until(lambda: last.waiting_rows == 0)
            stopping = asyncio.ensure_future(hosts.stop())
            await until(lambda: both.state == "stopping")
            with pytest.raises(MlctlError, match="'both' is stopping"):
                both.infer({"x": rows(0)})
        finally:
            released.set()
        # What was accepted is answered, by stages that serve until then.
        assert (await stuck).outputs["y"].ravel().tolist() == wanted(rows(0))
        await stopping

    serve(packed, use)


def test_pipeline__laid_out_in_a_bento__is_read_back(packed: BentoContents, tmp_path: Path) -> None:
    source = lay_out(packed, tmp_path / "src")
    found = read_contents(source)
    assert (found.digest, found.bento_manifest) == (packed.digest, packed.bento_manifest)
    assert packed.digest != combine_bundles(packed.bundles, "both").digest
    assert find_scorable(str(tmp_path)).digest == packed.digest
    assert find_scorable(str(source / "models" / "triple")).name == "triple"
    client = find_source(str(tmp_path))
    assert (client.name, client.digest) == ("both", packed.digest)
    assert [each.name for each in client.inputs + client.outputs] == ["x", "y"]
    assert find_source(str(source / "models" / "triple")).name == "triple"
    notes = source / MODELS_FILE
    notes.write_bytes(notes.read_bytes().replace(b'["double","y"]', b'["double","q"]'))
    with pytest.raises(MlctlError, match="stage 'double' has no output 'q'") as caught:
        read_contents(source)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


def test_pipeline__sample_folder__records_the_whole_only(
    packed: BentoContents, tmp_path: Path
) -> None:
    hosts = ModelRepository(
        packed, ServerSettings(sample_dir=tmp_path), registry=CollectorRegistry()
    )
    assert [host.settings.sample_dir for host in hosts.models] == [tmp_path, None, None]
