"""tritonclient's asyncio clients, compression and the standard gRPC services, on a real server."""

from __future__ import annotations

import math
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.utils import InferenceServerException

from mlctl.bento.packaging import BuiltBento
from tests.support.bundles import expected
from tests.support.serving import Server

pytestmark = pytest.mark.slow
X = np.linspace(-1, 1, 2000, dtype=np.float32).reshape(500, 4)
HTTP: Any = tritonclient.http
GRPC: Any = tritonclient.grpc
insecure_channel: Any = grpc.insecure_channel
stub: Any = HealthStub
CODINGS = [None, "gzip", "deflate"]


def tensor(module: Any, **options: Any) -> Any:
    return module.InferInput("x", list(X.shape), "FP32").set_data_from_numpy(X, **options)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("binary", [True, False])
async def test_clients__tritonclient_http_asyncio__is_answered(
    server: Server, built: BuiltBento, coding: str | None, binary: bool
) -> None:
    async with HTTP.aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        found = await client.infer(
            "tiny",
            [tensor(HTTP, binary_data=binary)],
            outputs=[HTTP.InferRequestedOutput("y", binary_data=binary)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        np.testing.assert_allclose(found.as_numpy("y"), expected(X), rtol=1e-5, atol=1e-5)
        assert (await client.get_model_metadata("tiny"))["versions"] == [built.digest]
        (entry,) = await client.get_model_repository_index()
        assert (entry["name"], entry["state"]) == ("tiny", "READY")
        assert "model_repository" in (await client.get_server_metadata())["extensions"]
        with pytest.raises(InferenceServerException, match="does not unload models"):
            await client.unload_model("tiny")


@pytest.mark.parametrize("coding", CODINGS)
def test_clients__tritonclient_http_with_compression__is_answered(
    server: Server, coding: str | None
) -> None:
    with HTTP.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        found = client.infer(
            "tiny",
            [tensor(HTTP)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        np.testing.assert_allclose(found.as_numpy("y"), expected(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("coding", CODINGS)
async def test_clients__tritonclient_grpc_asyncio__is_answered(
    server: Server, coding: str | None
) -> None:
    async with GRPC.aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        found = await client.infer("tiny", [tensor(GRPC)], compression_algorithm=coding)
        np.testing.assert_allclose(found.as_numpy("y"), expected(X), rtol=1e-5, atol=1e-5)
        index = await client.get_model_repository_index()
        assert [entry.state for entry in index.models] == ["READY"]
        assert (await client.get_server_metadata()).name == "mlctl"
        assert await client.is_server_live()


def test_config_and_statistics__http_and_grpc__are_the_same(
    server: Server, built: BuiltBento
) -> None:
    max_rows = 32
    config = {
        "name": "tiny",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": max_rows,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["4"]}],
    }
    lanes = {"priority_levels": "2", "default_priority_level": "2"}
    http_address, grpc_address = f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}"
    with (
        HTTP.InferenceServerClient(http_address) as http,
        GRPC.InferenceServerClient(grpc_address) as grpc,
    ):
        found = grpc.get_model_config("tiny", built.digest, as_json=True)["config"]
        assert found == {**config, "dynamic_batching": lanes}
        plain = http.get_model_config("tiny", built.digest)
        assert plain["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
        assert plain["dynamic_batching"]["max_queue_delay_microseconds"] == 0
        (before,) = http.get_inference_statistics()["model_stats"]
        http.infer("tiny", [tensor(HTTP)])
        grpc.infer("tiny", [tensor(GRPC)])
        (after,) = grpc.get_inference_statistics("tiny", as_json=True)["model_stats"]
    assert (after["name"], after["version"]) == ("tiny", "1")
    assert int(after["inference_count"]) - before["inference_count"] == 2 * len(X)
    parts = math.ceil(len(X) / max_rows)  # a large request is split
    assert int(after["execution_count"]) - before["execution_count"] == 2 * parts
    success = after["inference_stats"]["success"]
    assert int(success["count"]) - before["inference_stats"]["success"]["count"] == 2
    assert int(success["ns"]) > before["inference_stats"]["success"]["ns"]


async def test_config_and_statistics__asyncio_clients__are_the_same(server: Server) -> None:
    async with (
        HTTP.aio.InferenceServerClient(f"127.0.0.1:{server.port}") as http,
        GRPC.aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc,
    ):
        plain = await http.get_model_config("tiny")
        message = (await grpc.get_model_config("tiny")).config
        assert plain["max_batch_size"] == message.max_batch_size == 32
        (one,) = (await http.get_inference_statistics("tiny"))["model_stats"]
        (other,) = (await grpc.get_inference_statistics()).model_stats
        assert one["inference_count"] == other.inference_count
        with pytest.raises(InferenceServerException, match="no model"):
            await http.get_inference_statistics("another")
        with pytest.raises(InferenceServerException, match="no model"):
            await grpc.get_model_config("another")


def test_grpc_health__real_server__is_serving(server: Server) -> None:
    with insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        found = stub(channel).Check(HealthCheckRequest(), timeout=20)
        assert found.status == HealthCheckResponse.SERVING


def test_typed_service__real_server__is_reflected_and_answers(
    server: Server, built: BuiltBento
) -> None:
    with insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        service = "mlctl.models.tiny.v1.Predictor"
        assert service in database.get_services()
        pool = DescriptorPool(database)
        method = pool.FindServiceByName(service).methods_by_name["Predict"]
        request = GetMessageClass(method.input_type)(x=X.ravel())
        answer: Any = GetMessageClass(method.output_type)
        ask = channel.unary_unary(f"/{service}/Predict")
        found = answer.FromString(ask(request.SerializeToString(), timeout=20))
    y = np.array(found.y, np.float32).reshape(found.y_shape)
    np.testing.assert_allclose(y, expected(X), rtol=1e-5, atol=1e-5)
    assert found.model_digest == built.digest
