"""Rows of a table as records in a generated Python client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, MissingValues, Signature, TensorSpec
from mlctl.services.online.openapi.model import describe
from tests.bento.clients.rendered import load_client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    inputs = tuple(
        TensorSpec(name=name, dtype=dtype, shape=(DYNAMIC,))
        for name, dtype in (
            ("age", Datatype.FP64),
            ("the city", Datatype.BYTES),
            ("visits", Datatype.INT64),
        )
    )
    output = TensorSpec(name="label", dtype=Datatype.INT64, shape=(DYNAMIC,))
    signature = Signature(inputs=inputs, outputs=(output,))
    model = describe(
        "table",
        "e" * 64,
        signature,
        MissingValues(frozenset({"age", "the city"}), frozenset({"the city"})),
    )
    return load_client(model, tmp_path_factory.mktemp("client"))


def test_records__missing_values__are_nan_and_empty_text(client: Any) -> None:
    rows = [
        {"age": 41, "the city": "Rome", "visits": 3},
        {"age": None, "visits": 4},
        {"age": float("nan"), "the city": float("nan"), "visits": 5},
    ]
    request = client.Request.from_records(rows)
    np.testing.assert_array_equal(request.age, [41.0, np.nan, np.nan])
    assert request.the_city.tolist() == [b"Rome", b"", b""]
    assert (request.visits.tolist(), request.visits.dtype) == ([3, 4, 5], np.int64)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"age": 1}, "'visits' is missing in row 1"),
        ({"visits": 1}, "'age' is missing in row 1"),
        ({"age": 1, "visits": None}, "'visits' is missing in row 1"),
        ({"visits": 1, "agee": 2}, "row 1: the model has no input 'agee'"),
        ({"age": 1, "visits": "x"}, "'visits' is not an array of INT64"),
        ({"age": 1, "visits": 1, "the city": 4}, "'the city' has a int, expected bytes or str"),
    ],
)
def test_records__a_wrong_row__names_the_row_or_the_input(
    client: Any, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(client.InvalidInputError, match=message):
        client.Request.from_records([{"age": 1, "visits": 0}, row])


def test_records__a_model_of_matrices__has_no_records(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2))
    model = describe("matrix", "f" * 64, Signature(inputs=(spec,), outputs=(spec,)))
    assert not hasattr(load_client(model, tmp_path).Request, "from_records")
