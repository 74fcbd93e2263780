"""Rows of a table as JSON records on `/predict`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.manifest import Manifest
from mlctl.bundle.tensors import Datatype, MissingValues, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.http.predict import PredictApp, read_records
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings

COLUMNS = {
    "age": Datatype.FP64,
    "visits": Datatype.INT64,
    "the city": Datatype.BYTES,
    "plan": Datatype.BYTES,
    "vip": Datatype.BOOL,
}
MISSING = MissingValues(frozenset({"age", "the city"}), frozenset({"the city"}))
ROW = {"age": 41.5, "visits": 3, "the city": "Paris", "plan": "free", "vip": True}


def signature(**shapes: tuple[int, ...]) -> Signature:
    return Signature(
        inputs=tuple(
            TensorSpec(name=name, dtype=dtype, shape=shapes.get(name, (-1,)))
            for name, dtype in COLUMNS.items()
        ),
        outputs=(TensorSpec(name="label", dtype=Datatype.INT64, shape=(-1,)),),
    )


def test_records__one_value_for_each_column__become_the_inputs() -> None:
    found = read_records([ROW, {**ROW, "age": 7}], signature(), MISSING)
    assert {name: array.tolist() for name, array in found.items()} == {
        "age": [41.5, 7.0],
        "visits": [3, 3],
        "the city": [b"Paris", b"Paris"],
        "plan": [b"free", b"free"],
        "vip": [True, True],
    }
    for name, array in found.items():
        assert array.dtype.name == COLUMNS[name].numpy_name


def test_records__null_and_an_absent_optional_column__are_missing_values() -> None:
    rows = [ROW, {**ROW, "age": None, "the city": None}, {**ROW, "age": None}]
    del rows[2]["the city"]
    found = read_records(rows, signature(), MISSING)
    np.testing.assert_array_equal(found["age"], [41.5, np.nan, np.nan])
    assert found["the city"].tolist() == [b"Paris", b"", b""]


def test_records__a_list_for_each_row__becomes_a_matrix() -> None:
    rows = [{**ROW, "age": [1, 2]}, {**ROW, "age": [3, 4]}]
    found = read_records(rows, signature(age=(-1, 2)), MISSING)
    assert found["age"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(MlctlError, match=r"^row 1: column 'age': shape is \[1, 1\]"):
        read_records([rows[0], {**ROW, "age": [3]}], signature(age=(-1, 2)), MISSING)
    with pytest.raises(MlctlError, match="row 1: column 'age' is null"):
        read_records([rows[0], {**ROW, "age": None}], signature(age=(-1, 2)), MISSING)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (3, "row 1 is not an object"),
        ([ROW], "row 1 is not an object"),
        ({**ROW, "agee": 1}, "row 1: the model has no column 'agee'"),
        ({**ROW, "plan": None}, "row 1: column 'plan' is null"),
        ({"age": 1}, "row 1: column 'visits' is missing"),
        ({name: ROW[name] for name in ROW if name != "age"}, "row 1: column 'age' is missing"),
        (
            {**ROW, "age": "old"},
            "row 1: column 'age': 'old' is not of datatype FP64, which accepts numbers",
        ),
        (
            {**ROW, "visits": 1.5},
            "row 1: column 'visits': 1.5 is not of datatype INT64, which accepts whole numbers",
        ),
        (
            {**ROW, "vip": 1},
            "row 1: column 'vip': 1 is not of datatype BOOL, which accepts true and false",
        ),
        ({**ROW, "plan": ["a"]}, "row 1: column 'plan': ['a'] is not one value"),
        ({**ROW, "plan": {}}, "row 1: column 'plan': "),
    ],
)
def test_records__a_wrong_row__is_named_with_its_column(row: Any, message: str) -> None:
    with pytest.raises(MlctlError) as caught:
        read_records([ROW, row, ROW], signature(), MISSING)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert caught.value.message.startswith(message)


def test_records__a_value_that_overflows__is_named_with_its_row() -> None:
    with pytest.raises(MlctlError, match=r"^row 2: column 'visits': a value is outside"):
        read_records([ROW, ROW, {**ROW, "visits": 1 << 63}], signature(), MISSING)


def test_records__no_rows_or_a_model_without_rows__is_rejected() -> None:
    with pytest.raises(MlctlError, match="no rows"):
        read_records([], signature(), MISSING)
    with pytest.raises(MlctlError, match="no batch dimension"):
        read_records([ROW], signature(age=(3,)), MISSING)


def test_predict__records__are_scored_as_columns_are(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = bundle.manifest.model_dump()
    document["signature"] = signature().model_dump()
    document["input_constraints"] = {
        "nullable": sorted(MISSING.nullable),
        "optional": sorted(MISSING.optional),
    }
    odd = VerifiedBundle(bundle.root, Manifest.model_validate(document), bundle.digest)
    model = ServedModel(odd, ServerSettings(), registry=CollectorRegistry())
    given: list[dict[str, np.ndarray]] = []

    async def answer(inputs: dict[str, np.ndarray], *_: object) -> Answer:
        given.append(inputs)
        return Answer({"label": np.arange(len(inputs["vip"]))}, 0.0, 0.0, 1)

    monkeypatch.setattr(model, "infer", answer)

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(PredictApp(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            rows = [ROW, {**ROW, "age": None, "the city": "a:b"}]
            columns = {name.replace(" ", "_"): [value, value] for name, value in ROW.items()}
            bodies = ({"json": rows}, {"json": columns}, {"content": b'[{"age": 1, "age": 2}]'})
            return [await client.post("/predict", **body) for body in bodies]

    rows, columns, twice = asyncio.run(main())
    assert rows.json() == columns.json() == [0, 1]
    assert given[0]["the city"].tolist() == [b"Paris", b"a:b"]
    assert given[0].keys() == given[1].keys()
    assert twice.status_code == 400
    assert "key 'age' is given twice" in twice.json()["error"]
