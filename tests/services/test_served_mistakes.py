"""Mistakes of callers that only the model notices, at a real server: 400 in every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from mlctl.bento.packaging import build_bento
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.typed.descriptors import make_messages
from mlctl.services.online.grpc.typed.layout import lay_out
from mlctl.services.online.openapi.model import describe
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.bundles import make_lookup_bundle
from tests.support.serving import Server, launch, running

pytestmark = pytest.mark.slow
INFER = "/v2/models/lookup/infer"
GOOD = ([1, 2, 3], 3)
# An id beyond the table, and two lengths that differ.
MISTAKES = [([1, 99, 3], 3), ([1, 2, 3], 2)]
insecure_channel: Any = grpc.insecure_channel


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_lookup_bundle(tmp_path_factory.mktemp("lookup") / "bundle")


@pytest.fixture(scope="module")
def served(
    lookup: VerifiedBundle, store_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(store_home))
        tag = build_bento(lookup, {"mlctl.model": "lookup-optimized"}).tag
    with running(launch(tag, folder / "log", cwd=folder, bento_home=store_home)) as server:
        yield server


def v2_request(ids: list[int], weights: int, *, binary: bool) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a request over HTTP."""
    arrays: dict[str, np.ndarray] = {
        "ids": np.array([ids], np.int64),
        "weights": np.ones((1, weights), np.float32),
    }
    inputs: list[dict[str, Any]] = []
    for name, array in arrays.items():
        kind = "INT64" if name == "ids" else "FP32"
        tensor = {"name": name, "datatype": kind, "shape": list(array.shape)}
        if binary:
            inputs.append({**tensor, "parameters": {"binary_data_size": array.nbytes}})
        else:
            inputs.append({**tensor, "data": array.ravel().tolist()})
    document = {"inputs": inputs, "parameters": {"binary_data_output": binary}}
    header = json.dumps(document).encode()
    if not binary:
        return {"content-type": "application/json"}, header
    content = b"".join(array.tobytes() for array in arrays.values())
    return {"inference-header-content-length": str(len(header))}, header + content


@pytest.mark.parametrize("binary", [True, False])
def test_http__model_rejects_the_inputs__is_400(served: Server, binary: bool) -> None:
    with httpx.Client(base_url=served.url) as client:  # one connection, as for known requests
        for ids, weights in [GOOD, *MISTAKES, GOOD, *MISTAKES]:
            headers, content = v2_request(ids, weights, binary=binary)
            found = client.post(INFER, headers=headers, content=content)
            if (ids, weights) == GOOD:
                assert found.status_code == 200
            else:
                assert found.status_code == 400, found.text
                assert found.json()["code"] == "invalid_input"
                assert "rejects these inputs" in found.json()["error"]


def test_predict__model_rejects_the_inputs__is_400(served: Server) -> None:
    for ids, weights in MISTAKES:
        body = {"ids": [ids], "weights": [[1.0] * weights]}
        found = httpx.post(f"{served.url}/predict", json=body)
        assert (found.status_code, found.json()["code"]) == (400, "invalid_input"), found.text


def grpc_request(ids: list[int], weights: int) -> Any:
    message = methods()["ModelInfer"].request(model_name="lookup")
    message.inputs.add(name="ids", datatype="INT64", shape=[1, len(ids)])
    message.inputs.add(name="weights", datatype="FP32", shape=[1, weights])
    message.raw_input_contents.append(np.array(ids, np.int64).tobytes())
    message.raw_input_contents.append(np.ones(weights, np.float32).tobytes())
    return message


def test_grpc__model_rejects_the_inputs__is_invalid_argument(
    served: Server, lookup: VerifiedBundle
) -> None:
    layout = lay_out(describe("lookup", lookup.digest, lookup.manifest.signature))
    typed = make_messages(layout).request
    with insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        predict = channel.unary_unary(f"/{layout.service}/Predict")
        for ids, weights in [GOOD, *MISTAKES, GOOD, *MISTAKES]:
            shapes = {"ids_shape": [1, len(ids)], "weights_shape": [1, weights]}
            plain = typed(ids=ids, weights=[1.0] * weights, **shapes)
            for method, message in ((infer, grpc_request(ids, weights)), (predict, plain)):
                if (ids, weights) == GOOD:
                    method(message.SerializeToString(), timeout=20)
                    continue
                with pytest.raises(grpc.RpcError) as caught:
                    method(message.SerializeToString(), timeout=20)
                error: Any = caught.value
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "rejects these inputs" in error.details()


def test_metrics__model_rejects_the_inputs__no_server_error_is_counted(served: Server) -> None:
    headers, content = v2_request(*MISTAKES[0], binary=True)
    assert httpx.post(f"{served.url}{INFER}", headers=headers, content=content).is_client_error
    text = httpx.get(f"{served.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("mlctl_requests_total{")]
    assert any('outcome="invalid_input"' in line for line in lines)
    assert not any('outcome="internal"' in line for line in lines)
