"""Null in a column whose input may lack values."""

import numpy as np
import pyarrow as pa
import pytest

from mlctl.bundle.tensors import Datatype, MissingValues, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.tables.input_columns import find_feeds
from mlctl.services.tables.tensors import to_tensors

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="age", dtype=Datatype.FP64, shape=(-1,)),
        TensorSpec(name="city", dtype=Datatype.BYTES, shape=(-1,)),
    ),
    outputs=(TensorSpec(name="score", dtype=Datatype.FP64, shape=(-1,)),),
)


@pytest.mark.parametrize("ages", [[1.0, None], [1, None], ["1", None], [None, None]])
def test_null__in_a_nullable_input__is_nan_or_empty_text(ages: list[object]) -> None:
    table = pa.table({"age": ages, "city": ["Oslo", None]})
    feeds = find_feeds(table.schema, SIGNATURE, {}, MissingValues(frozenset({"age", "city"})))
    groups, reasons = to_tensors(table, feeds)
    assert not reasons
    assert np.isnan(groups[0].arrays["age"][1])
    assert groups[0].arrays["city"].tolist() == [b"Oslo", b""]


def test_null__in_another_input__rejects_the_row() -> None:
    table = pa.table({"age": [1.0, None, None], "city": ["Oslo", "Rome", None]})
    feeds = find_feeds(table.schema, SIGNATURE, {}, MissingValues(frozenset({"age"})))
    groups, reasons = to_tensors(table, feeds)
    assert reasons == {2: "column 'city' is null"}
    assert groups[0].rows.tolist() == [0, 1]


def test_column__absent_and_optional__is_a_missing_value_in_each_row() -> None:
    table = pa.table({"city": ["Oslo", "Rome"]})
    every = frozenset({"age", "city"})
    feeds = find_feeds(table.schema, SIGNATURE, {}, MissingValues(every, every))
    groups, reasons = to_tensors(table, feeds)
    assert not reasons
    assert np.isnan(groups[0].arrays["age"]).tolist() == [True, True]
    assert groups[0].arrays["age"].dtype == np.float64
    assert groups[0].arrays["city"].tolist() == [b"Oslo", b"Rome"]


def test_column__absent_and_only_nullable__is_rejected_with_its_name() -> None:
    schema = pa.schema({"city": pa.string()})
    with pytest.raises(MlctlError, match="no column feeds input 'age'"):
        find_feeds(schema, SIGNATURE, {}, MissingValues(frozenset({"age", "city"})))
