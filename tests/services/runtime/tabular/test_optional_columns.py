"""Null in a column whose input may lack values."""

import numpy as np
import pyarrow as pa
import pytest

from bundle.tensors import Datatype, Signature, TensorSpec
from services.runtime.tabular.input_columns import find_feeds
from services.runtime.tabular.tensors import to_tensors

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="age", dtype=Datatype.FP64, shape=(-1,)),
        TensorSpec(name="city", dtype=Datatype.BYTES, shape=(-1,)),
    ),
    outputs=(TensorSpec(name="score", dtype=Datatype.FP64, shape=(-1,)),),
)


@pytest.mark.parametrize("ages", [[1.0, None], [1, None], ["1", None], [None, None]])
def test_null__in_an_optional_input__is_nan_or_empty_text(ages: list[object]) -> None:
    table = pa.table({"age": ages, "city": ["Oslo", None]})
    feeds = find_feeds(table.schema, SIGNATURE, {}, frozenset({"age", "city"}))
    groups, reasons = to_tensors(table, feeds)
    assert not reasons
    assert np.isnan(groups[0].arrays["age"][1])
    assert groups[0].arrays["city"].tolist() == [b"Oslo", b""]


def test_null__in_a_required_input__rejects_the_row() -> None:
    table = pa.table({"age": [1.0, None, None], "city": ["Oslo", "Rome", None]})
    feeds = find_feeds(table.schema, SIGNATURE, {}, frozenset({"age"}))
    groups, reasons = to_tensors(table, feeds)
    assert reasons == {2: "column 'city' is null"}
    assert groups[0].rows.tolist() == [0, 1]
