"""A real `bentoml serve` of a real Bento, asked in every way it can be asked."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from mlctl.bento.packaging import BuiltBento
from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.model.session import open_session
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.serving import Server

pytestmark = pytest.mark.slow
X = np.array([[1, 2, 3, 4], [0.5, -1, 0, 7]], dtype=np.float32)
MODEL = "/v2/models/tiny"
triton_grpc: Any = tritonclient.grpc
triton_http: Any = tritonclient.http


@pytest.fixture(scope="module")
def answer(shared_bundle: VerifiedBundle) -> np.ndarray:
    """What ONNX Runtime answers to X in this process."""
    return open_session(shared_bundle.path(MODEL_NAME)).run({"x": X})["y"]


@pytest.mark.parametrize("binary", [True, False])
def test_served__tritonclient_over_http__is_answered(
    server: Server, answer: np.ndarray, binary: bool
) -> None:
    client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
    tensor = triton_http.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    output = triton_http.InferRequestedOutput("y", binary_data=binary)
    found = client.infer("tiny", [tensor], outputs=[output], request_id="r1")
    np.testing.assert_array_equal(found.as_numpy("y"), answer)
    assert found.get_response()["id"] == "r1"
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    client.close()


def test_served__tritonclient_over_grpc__is_answered(
    server: Server, answer: np.ndarray, built: BuiltBento
) -> None:
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    tensor = triton_grpc.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(X)
    found = client.infer("tiny", [tensor], model_version=built.digest)
    np.testing.assert_array_equal(found.as_numpy("y"), answer)
    assert found.get_response().model_version == built.digest
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert list(client.get_model_metadata("tiny").versions) == [built.digest]
    with pytest.raises(InferenceServerException, match="no model 'other'"):
        client.infer("other", [tensor])
    client.close()


def test_served__plain_json__is_answered_by_both_apis(
    server: Server, answer: np.ndarray, built: BuiltBento
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}
    v2 = httpx.post(f"{server.url}{MODEL}/infer", json={"inputs": [tensor]})
    assert v2.json()["model_version"] == built.digest
    np.testing.assert_allclose(np.reshape(v2.json()["outputs"][0]["data"], (2, 4)), answer)
    typed = httpx.post(f"{server.url}/predict", json={"x": X.tolist()})
    np.testing.assert_allclose(typed.json(), answer)


def test_served__bentomls_client__is_answered(server: Server, answer: np.ndarray) -> None:
    code = (
        "import bentoml, json, sys\n"
        f"with bentoml.SyncHTTPClient('{server.url}') as client:\n"
        f"    print(json.dumps(client.predict(x={X.tolist()}).tolist()))\n"
    )
    environment = {**os.environ, "BENTOML_HOME": str(server.log.parent / "client")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(httpx.Response(200, text=done.stdout).json()), answer)


def test_served__v2_paths__bypass_bentomls_application(server: Server) -> None:
    v2 = httpx.get(f"{server.url}{MODEL}")
    assert "x-bentoml-request-id" not in v2.headers
    assert "server" not in v2.headers
    typed = httpx.post(f"{server.url}/predict", json={"x": X.tolist()})
    assert "x-bentoml-request-id" not in typed.headers
    assert MODEL not in server.log.read_text()  # nor is it in BentoML's access log
    for path in ("/readyz", "/livez", "/docs.json", "/v2/health/ready"):
        assert httpx.get(f"{server.url}{path}").status_code == 200


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        (f"{MODEL}/infer", b"{", 400),
        (f"{MODEL}/infer", b" " * 100_001, 413),
        ("/v2/models/other/infer", b"{}", 404),
        ("/predict", b'{"x": [[1, 2]]}', 400),
        ("/predict", b'{"x": [["a", 2, 3, 4]]}', 400),
        ("/predict", b'{"x": []}', 400),
        ("/predict", b'{"x": [%b[0, 0, 0, 0]]}' % (b"[0, 0, 0, 0], " * 4096), 413),
        ("/predict", b"{}", 400),
        ("/predict", b" " * 100_001, 413),
    ],
)
def test_served__invalid_requests__have_their_status(
    server: Server, path: str, content: bytes, status: int
) -> None:
    headers = {"content-type": "application/json"}
    found = httpx.post(f"{server.url}{path}", content=content, headers=headers)
    assert found.status_code == status, found.text
    assert found.json().keys() == {"error", "code", "hint"}
    assert "Traceback" not in found.text


@pytest.mark.parametrize(
    ("lanes", "status"), [(["high", "high"], 200), (["high", "normal"], 400), (["none"], 400)]
)
def test_served__priority_header_twice__is_read_the_same_on_each_path(
    server: Server, lanes: list[str], status: int
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}
    v2 = {"inputs": [tensor]}
    headers = [("mlctl-priority", lane) for lane in lanes]
    for path, body in (("infer", v2), ("infer?", v2), ("infer_stream", v2)):
        found = httpx.post(f"{server.url}{MODEL}/{path}", json=body, headers=headers)
        assert found.status_code == status, path
        assert ("high or normal" in found.text) is (status == 400)
    typed = httpx.post(f"{server.url}/predict", json={"x": X.tolist()}, headers=headers)
    assert typed.status_code == status
    assert ("high or normal" in typed.text) is (status == 400)
    opened: Any = grpc.insecure_channel
    with opened(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = methods()["ModelInfer"]
        message = infer.request(model_name="tiny")
        message.inputs.add(name="x", datatype="FP32", shape=[2, 4])
        message.raw_input_contents.append(X.tobytes())
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", infer.request.SerializeToString, infer.response.FromString
        )
        if status == 200:
            assert call(message, metadata=headers).outputs
            return
        with pytest.raises(grpc.RpcError, match=r"(?s)INVALID_ARGUMENT.*high or normal"):
            call(message, metadata=headers)


def test_served__metrics__include_ours_and_bentomls(server: Server) -> None:
    httpx.post(f"{server.url}/predict", json={"x": X.tolist()})
    text = httpx.get(f"{server.url}/metrics").text
    assert 'mlctl_requests_total{model="tiny",outcome="ok",protocol="predict"}' in text
    assert 'mlctl_queue_rows{model="tiny"} 0.0' in text
    assert "mlctl_batch_rows_bucket" in text
    assert 'mlctl_stage_seconds_bucket{le="0.001",model="tiny",stage="parse"}' in text
    assert 'mlctl_deadline_misses_total{model="tiny"}' in text
    assert "bentoml_service_request_total" in text
    assert "# TYPE nv_inference_count counter" in text


def test_served__http_protocol__is_ours(server: Server) -> None:
    headers = {f"x-{number}": "1" for number in range(200)}  # uvicorn's own takes any number
    assert httpx.get(f"{server.url}/v2", headers=headers).status_code == 431
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}
    found = httpx.post(f"{server.url}{MODEL}/infer", json={"inputs": [tensor]})
    assert found.headers["date"]
    assert found.headers["x-request-id"]
