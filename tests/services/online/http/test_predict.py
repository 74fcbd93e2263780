from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.manifest import Manifest
from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.http.predict import PredictApp, to_array
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.priority import Priority


def spec(name: str, dtype: str = "FP32", shape: tuple[int, ...] = (-1, 2)) -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype(dtype), shape=shape)


def test_to_array__lists_of_another_kind_or_shape__are_rejected() -> None:
    assert to_array(spec("x"), [[1, 2.5]]).dtype == np.float32
    for wrong in ([[1]], [["1", "2"]], [[1, 2], [3]], [1, 2], None, "12"):
        with pytest.raises(MlctlError, match="'x'"):
            to_array(spec("x"), wrong)
    with pytest.raises(MlctlError, match="INT64"):
        to_array(spec("x", "INT64"), [[1, 2.5]])


def test_to_array__arrays_text_and_half_floats__are_converted() -> None:
    array = np.ones((1, 2), np.float32)
    assert to_array(spec("x"), array) is array
    assert to_array(spec("t", "BYTES", (-1,)), ["a", "b"]).tolist() == [b"a", b"b"]
    half = to_array(spec("h", "FP16"), [[1, 2]])
    assert half.dtype == np.float16
    with pytest.raises(MlctlError, match="FP16"):
        to_array(spec("h", "FP16"), [[1e6, 0]])


@pytest.fixture
def host(bundle: VerifiedBundle) -> ServedModel:
    """A host of a model with a text input and two outputs, which is never started."""
    document = bundle.manifest.model_dump()
    document["signature"] = {
        "inputs": [
            {"name": "the words", "dtype": "BYTES", "shape": [-1]},
            {"name": "n", "dtype": "INT64", "shape": [-1]},
        ],
        "outputs": [
            {"name": "a.b", "dtype": "FP32", "shape": [-1]},
            {"name": "text", "dtype": "BYTES", "shape": [-1]},
        ],
    }
    odd = VerifiedBundle(bundle.root, Manifest.model_validate(document), bundle.digest)
    return ServedModel(odd, ServerSettings(), registry=CollectorRegistry())


def post(model: ServedModel, *calls: dict[str, Any]) -> list[httpx.Response]:
    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(PredictApp(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [
                await client.request(**{"method": "POST", "url": "/predict", **c}) for c in calls
            ]

    return asyncio.run(main())


def test_predict__text_and_several_outputs__are_an_object_by_name(
    host: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[dict[str, np.ndarray], Priority]] = []

    async def answer(inputs: dict[str, np.ndarray], _timeout: float, priority: Priority) -> Answer:
        given.append((inputs, priority))
        outputs = {"a.b": np.ones(1, np.float32), "text": np.array([b"yes"], dtype=object)}
        return Answer(outputs, 0.0, 0.0, 1)

    monkeypatch.setattr(host, "infer", answer)
    arguments = {"the_words": ["hi"], "n": [3]}
    calls = [
        {"json": arguments, "headers": {"x-request-id": "mine"}},
        {"json": arguments, "headers": {"mlctl-priority": "high"}},
    ]
    first, second = post(host, *calls)
    assert first.json() == second.json() == {"a_b": [1.0], "text": ["yes"]}
    assert first.headers["x-request-id"] == "mine"
    assert given[0][0]["the words"].tolist() == [b"hi"]
    assert given[0][0]["n"].dtype == np.int64
    assert [priority for _, priority in given] == [Priority.NORMAL, Priority.HIGH]


@pytest.mark.parametrize(
    ("call", "status", "code", "message"),
    [
        ({"json": {"the_words": ["hi"], "n": [1.5]}}, 400, "invalid_input", "INT64"),
        ({"json": {"n": [1]}}, 400, "invalid_input", "'the_words' is missing"),
        ({"json": [1]}, 400, "invalid_input", "row 0 is not an object"),
        ({"json": 1}, 400, "invalid_input", "not a JSON object"),
        ({"content": b"{"}, 400, "invalid_input", "not valid JSON"),
        ({"json": {"the_words": ["hi"], "n": [1]}}, 503, "unavailable", "starting"),
        ({"url": "/predict/other"}, 404, "not_found", "no such path"),
        ({"method": "GET"}, 405, "method_not_allowed", "POST"),
        ({"data": {"x": "1"}}, 415, "unsupported_media_type", "content type"),
        ({"files": {"x": b"1"}}, 415, "unsupported_media_type", "content type"),
        ({"content": b"[" + b"1," * (1 << 20)}, 413, "payload_too_large", "1048576 values"),
        ({"headers": {"content-length": "99999999"}}, 413, "payload_too_large", "limit of"),
        ({"json": {}, "headers": {"mlctl-priority": "low"}}, 400, "invalid_input", "priority"),
        ({"headers": {"content-encoding": "gzip"}}, 415, "unsupported_media_type", "encoding"),
    ],
)  # fmt: skip
def test_predict__wrong_call__has_the_status_and_code_of_the_error_table(
    host: ServedModel, call: dict[str, Any], status: int, code: str, message: str
) -> None:
    (response,) = post(host, call)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert message in response.json()["error"]


def test_predict__unexpected_failure__shows_nothing_of_it(
    host: ServedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Answer:
        raise RuntimeError("/srv/secret")

    monkeypatch.setattr(host, "infer", fail)
    (response,) = post(host, {"json": {"the_words": ["hi"], "n": [1]}})
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "secret" not in response.text
    assert "secret" in caplog.text
