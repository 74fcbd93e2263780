"""SageMaker's contract: `/ping` and `/invocations` with JSON, V2 and CSV."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.manifest import Manifest
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.http.invocations import SageMakerApp
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.priority import Priority
from tests.support.bundles import expected, make_table_bundle

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


TABLE = {"age": [1.0, 2.0], "income": [10.0, 20.0]}
SPLIT = {"columns": ["income", "age"], "index": [0, 1], "data": [[10.0, 1.0], [20.0, 2.0]]}
RECORDS = [{"age": 1.0, "income": 10.0}, {"age": 2.0, "income": 20.0}]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    """A model of the columns `age` and `income`, which is never started."""
    made = ServedModel(
        make_table_bundle(tmp_path / "table"), ServerSettings(), registry=CollectorRegistry()
    )

    async def answer(inputs: dict[str, np.ndarray], _seconds: float, _priority: Priority) -> Answer:
        return Answer({"y": inputs["age"] * 1000 + inputs["income"]}, 0.0, 0.0, 2)

    monkeypatch.setattr(made, "infer", answer)
    return made


@pytest.mark.parametrize(
    "request_",
    [
        {"json": {"dataframe_split": SPLIT}},
        {"json": {"dataframe_split": SPLIT, "params": None}},
        {"json": {"dataframe_records": RECORDS}},
        {"json": {"instances": RECORDS}},
        {"json": {"inputs": TABLE}},
        {"content": "age,income\n1,10\n2,2e1\n", "headers": CSV},
        {"content": '"income",age\r\n10,1.0\r\n20,2\r\n\r\n', "headers": CSV},
    ],
)
def test_invocations__each_form_of_mlflow__is_answered_with_predictions(
    table: ServedModel, request_: dict[str, Any]
) -> None:
    response = call(table, "POST", "/invocations", **request_)
    assert response.json() == {"predictions": [1010.0, 2020.0]}
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": ROWS.tolist()},
        {"instances": ROWS.tolist()},
        {"inputs": {"x": ROWS.tolist()}},
        {"dataframe_split": {"columns": [0, 1, 2, 3], "data": ROWS.tolist()}},
    ],
)
def test_invocations__mlflows_tensor_of_the_only_input__is_answered_with_predictions(
    model: ServedModel, document: dict[str, Any]
) -> None:
    found = call(model, "POST", "/invocations", json=document).json()["predictions"]
    np.testing.assert_allclose(found, expected(ROWS), rtol=1e-6)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"json": {"inputs": TABLE, "params": {"k": 1}}}, "the model takes no parameters"),
        ({"json": {"inputs": {"age": [1.0], "size": [1.0]}}}, "input 'size' is unknown"),
        ({"json": {"inputs": {"income": [1.0]}}}, "input 'age' is missing"),
        ({"json": {"inputs": [1.0, 2.0]}}, "must name the model's inputs"),
        ({"json": {"instances": [[1.0, 2.0]]}}, "must name the model's inputs"),
        ({"json": {"dataframe_records": TABLE}}, "must be an array of objects"),
        ({"json": {"dataframe_records": [{"age": "x"}]}}, "row 0: column 'age': 'x' is not of"),
        ({"json": {"dataframe_split": {"data": 1}}}, "'data' is an array of rows"),
        ({"json": {"dataframe_split": {**SPLIT, "columns": ["age", "age"]}}}, "distinct names"),
        ({"json": {"dataframe_split": {**SPLIT, "data": [[1.0]]}}}, "row 0 has 1 values, expected"),
        ({"content": "age,income\n1,x\n", "headers": CSV}, "row 0: column 'income': 'x' is not"),
        ({"content": "age,income\n1\n", "headers": CSV}, "row 0 has 1 values, expected 2"),
        ({"content": "age\n1_0\n", "headers": CSV}, "'1_0' is not of datatype FP64"),
        ({"content": "age\n", "headers": CSV}, "the body has no rows"),
        ({"content": "age,other\n1,2\n", "headers": CSV}, "header that names the inputs"),
    ],
)
def test_invocations__wrong_form_of_mlflow__is_rejected_with_the_place(
    table: ServedModel, request_: dict[str, Any], message: str
) -> None:
    response = call(table, "POST", "/invocations", **request_)
    assert (response.status_code, message in response.json()["error"]) == (400, True), response.text


def test_invocations__csv_of_mlflow_with_an_empty_field__is_a_missing_value(
    table: ServedModel,
) -> None:
    response = call(table, "POST", "/invocations", content="age,income\n,10\n", headers=CSV)
    # JSON has no NaN: the stand-in for a model passes the missing value on.
    assert (response.status_code, response.json()["code"]) == (500, "internal")
