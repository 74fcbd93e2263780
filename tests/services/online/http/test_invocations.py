"""SageMaker's contract: `/ping` and `/invocations` with JSON, V2 and CSV."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from bundle.manifest import Manifest
from bundle.verify import VerifiedBundle
from services.online.batching.executor import Answer
from services.online.http.invocations import SageMakerApp
from services.online.models.served_model import ServedModel
from services.online.settings import ServerSettings
from services.protocol.priority import Priority
from tests.support.bundles import expected

CSV = {"content-type": "text/csv; charset=utf-8"}
ROWS = np.array([[1, 2, 3, 4], [0.1, 0, 0, 0]], np.float32)


@pytest.fixture
def model(bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    """A model that is never started: its answers are made here."""
    made = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())

    async def answer(inputs: dict[str, np.ndarray], _seconds: float, _priority: Priority) -> Answer:
        return Answer({"y": expected(inputs["x"])}, 0.0, 0.0, 1)

    monkeypatch.setattr(made, "infer", answer)
    return made


def call(model: ServedModel, method: str, path: str, **request: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(SageMakerApp(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **request)

    return asyncio.run(main())


def test_invocations__each_form__is_answered_in_the_same_form(model: ServedModel) -> None:
    plain = call(model, "POST", "/invocations", json={"x": ROWS.tolist()})
    np.testing.assert_allclose(plain.json(), expected(ROWS), rtol=1e-6)

    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS.ravel().tolist()}
    v2 = call(model, "POST", "/invocations", json={"id": "7", "inputs": [tensor]}).json()
    assert (v2["id"], v2["model_name"]) == ("7", "tiny")
    np.testing.assert_allclose(v2["outputs"][0]["data"], expected(ROWS).ravel(), rtol=1e-6)

    text = "".join(",".join(map(str, row)) + "\n" for row in ROWS)
    for body in (text, text.strip(), text.replace("\n", "\r\n")):
        response = call(model, "POST", "/invocations", content=body, headers=CSV)
        assert response.headers["content-type"] == "text/csv"
        answers = [line.split(",") for line in response.text.splitlines()]
        np.testing.assert_array_equal(np.array(answers, np.float32), expected(ROWS))


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"content": "a,b,c,d\n1,2,3,4\n"}, 400, "without a header"),
        ({"content": "1,2,3,4\n1,2\n"}, 400, "equally many values"),
        ({"content": "1,2\n"}, 400, "expected [-1, 4]"),
        ({"content": " \n"}, 400, "without a header"),
        ({"content": b"\xff"}, 400, "without a header"),
        ({"content": b"1," * (1 << 21)}, 413, "1048576 values"),
        ({"content": "1,2,3,4", "headers": {"content-type": "text/plain"}}, 415, "content type"),
    ],
)
def test_invocations__wrong_csv__has_the_status_of_the_error_table(
    model: ServedModel, request_: dict[str, Any], status: int, message: str
) -> None:
    response = call(model, "POST", "/invocations", **{"headers": CSV, **request_})
    assert (response.status_code, message in response.json()["error"]) == (status, True), (
        response.text
    )


def test_invocations__v2_with_binary_output__is_rejected(model: ServedModel) -> None:
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS.ravel().tolist()}
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    body = {"inputs": [tensor], "outputs": wanted}
    response = call(model, "POST", "/invocations", json=body)
    assert response.status_code == 400
    assert "request it as JSON" in response.json()["error"]


@pytest.mark.usefixtures("store_home")
def test_invocations__csv_of_text__is_one_value_a_line(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = bundle.manifest.model_dump()
    text = [{"name": name, "dtype": "BYTES", "shape": [-1]} for name in ("words", "label")]
    document["signature"] = {"inputs": text[:1], "outputs": text[1:]}
    words = VerifiedBundle(bundle.root, Manifest.model_validate(document), bundle.digest)
    model = ServedModel(words, ServerSettings(), registry=CollectorRegistry())

    async def answer(inputs: dict[str, np.ndarray], _seconds: float, _priority: Priority) -> Answer:
        return Answer({"label": inputs["words"]}, 0.0, 0.0, 1)

    monkeypatch.setattr(model, "infer", answer)
    body = '"a, b"\nc\n'
    assert call(model, "POST", "/invocations", content=body, headers=CSV).text == body


def test_ping__model_that_is_not_ready__is_503(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(model, "GET", "/ping").status_code == 503
    monkeypatch.setattr(ServedModel, "ready", True)
    assert call(model, "GET", "/ping").status_code == 200
    assert call(model, "POST", "/ping").status_code == 405
