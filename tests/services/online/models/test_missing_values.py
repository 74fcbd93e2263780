"""Columns that a request leaves out: an error with the column's name, or NaN if it is optional."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.http.predict import PredictApp
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import make_table_bundle
from tests.support.listening import listening

AGES = {"name": "age", "datatype": "FP64", "shape": [2], "data": [30, 40]}
INCOMES = {"name": "income", "datatype": "FP64", "shape": [2], "data": [1, 2]}
# 1000 * age + income, with -1 for a missing value.
BOTH, NO_INCOME = [30_001.0, 40_002.0], [29_999.0, 39_999.0]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers by the form of the request, of the infer endpoint and of `/predict`."""
    bundle = make_table_bundle(tmp_path_factory.mktemp("table"))
    infer = {
        "v2": [AGES, INCOMES],
        "v2 without income": [AGES],
        "v2 without age": [INCOMES],
    }
    predict: dict[str, Any] = {
        "columns without income": {"age": [30, 40]},
        "columns without age": {"income": [1, 2]},
        "records": [{"age": 30}, {"age": 40, "income": 2}, {"age": None, "income": None}],
        "records without age": [{"age": 30}, {"income": 2}],
    }
    found: dict[str, Any] = {}

    async def main() -> None:
        model = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
        await model.start()
        inference = InferHandler(model)
        async with (
            listening(V2App(model, inference), infer_protocol(inference)) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            for form, tensors in infer.items():
                answer = await client.post("/v2/models/table/infer", json={"inputs": tensors})
                found[form] = answer.json()
        transport = httpx.ASGITransport(PredictApp(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for form, body in predict.items():
                found[form] = (await client.post("/predict", json=body)).json()
        await model.stop()

    asyncio.run(main())
    return found


def test_v2__an_absent_optional_column__is_nan_in_each_row(answers: dict[str, Any]) -> None:
    assert answers["v2"]["outputs"][0]["data"] == BOTH
    assert answers["v2 without income"]["outputs"][0]["data"] == NO_INCOME


def test_v2__an_absent_column_that_is_not_optional__is_rejected_with_its_name(
    answers: dict[str, Any],
) -> None:
    assert answers["v2 without age"]["error"].startswith("input 'age' is missing")


def test_predict__an_absent_optional_column__is_nan(answers: dict[str, Any]) -> None:
    assert answers["columns without income"] == NO_INCOME
    assert answers["records"] == [29_999.0, 40_002.0, -1001.0]


def test_predict__an_absent_column_that_is_not_optional__is_rejected_with_its_name(
    answers: dict[str, Any],
) -> None:
    assert "'age' is missing" in answers["columns without age"]["error"].replace('"', "'")
    assert answers["records without age"]["error"] == "row 1: column 'age' is missing"
