"""Which columns feed which input."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.tables.input_columns import find_feeds, parse_map


def signature(*shapes: tuple[int, ...], dtype: Datatype = Datatype.FP32) -> Signature:
    names = ("a", "b") if len(shapes) > 1 else ("features",)
    return Signature(
        inputs=tuple(
            TensorSpec(name=name, dtype=dtype, shape=(-1, *shape))
            for name, shape in zip(names, shapes, strict=True)
        ),
        outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1,)),),
    )


F = pa.float32()
THREE = signature((3,))


@pytest.mark.parametrize(
    ("schema", "mapped", "columns"),
    [
        ({"features": pa.list_(F, 3)}, [], ("features",)),
        ({"features": pa.list_(F)}, [], ("features",)),
        ({"x": pa.list_(F, 3)}, [], ("x",)),
        ({"inputs": pa.list_(pa.float64(), 3)}, [], ("inputs",)),
        ({f"features_{i}": F for i in range(3)}, [], ("features_0", "features_1", "features_2")),
        ({"p": F, "q": F, "r": F}, ["features=r,p,q"], ("r", "p", "q")),
        ({"id": F, "f1": F, "f2": F, "f3": F}, ["features=f*"], ("f1", "f2", "f3")),
        ({"a b": pa.list_(F)}, ["features=a b"], ("a b",)),
        ({"features": pa.list_(pa.string())}, [], ("features",)),  # text may be numbers
    ],
)
def test_find_feeds__matching_columns__are_found(
    schema: dict[str, pa.DataType], mapped: list[str], columns: tuple[str, ...]
) -> None:
    (feed,) = find_feeds(pa.schema(list(schema.items())), THREE, parse_map(mapped))
    assert feed.columns == columns


@pytest.mark.parametrize(
    ("schema", "mapped", "told"),
    [
        ({"other": F}, [], "no column feeds input 'features'; the columns are: other .float"),
        ({"features": F}, [], "has one value of float in a row, expected 3 values"),
        ({"features": pa.list_(F, 4)}, [], "has 4 values in a row, expected 3"),
        ({"features": pa.list_(pa.binary(), 3)}, [], "holds binary, expected numbers"),
        ({"features": pa.list_(pa.timestamp("s"), 3)}, [], "expected numbers"),
        ({"p": F, "q": F}, ["features=p,q"], "3 values, but 2 columns"),
        ({"p": F}, ["features=z*"], "no column is named 'z.'"),
        ({"features": pa.list_(F, 3)}, ["other=features"], "the model has no input 'other'"),
    ],
)
def test_find_feeds__no_matching_columns__lists_them(
    schema: dict[str, pa.DataType], mapped: list[str], told: str
) -> None:
    with pytest.raises(MlctlError, match=told) as caught:
        find_feeds(pa.schema(list(schema.items())), THREE, parse_map(mapped))
    assert "The model's inputs are features FP32[-1, 3]" in caught.value.hint


def test_find_feeds__numbers_for_text__are_rejected() -> None:
    with pytest.raises(MlctlError, match="holds float, expected text"):
        find_feeds(pa.schema([("features", F)]), signature((), dtype=Datatype.BYTES), {})


def test_find_feeds__two_inputs__are_matched_by_name() -> None:
    feeds = find_feeds(pa.schema([("b", F), ("a", pa.list_(F))]), signature((-1,), ()), {})
    assert [(feed.columns, feed.width) for feed in feeds] == [(("a",), -1), (("b",), 1)]


@pytest.mark.parametrize("text", ["x", "=a", "x="])
def test_parse_map__invalid_form__is_rejected(text: str) -> None:
    with pytest.raises(MlctlError, match="INPUT=COLUMN"):
        parse_map([text])
