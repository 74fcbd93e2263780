from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlctl.bundle.tensors import DYNAMIC, Datatype, MissingValues, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.online.http.predict import to_array
from mlctl.services.stream.base import Decoded
from mlctl.services.stream.payloads import PayloadRequest, open_payload


def _spec(name: str, dtype: Datatype = Datatype.FP32, *row: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(DYNAMIC, *row))


FOUR = Signature(inputs=(_spec("x", Datatype.FP32, 4),), outputs=(_spec("y", Datatype.FP32, 4),))
WIDE = Signature(
    inputs=(
        _spec("age", Datatype.INT64, 1),
        _spec("word", Datatype.BYTES),
        _spec("picture", Datatype.UINT8, 2, 2),
    ),
    outputs=(_spec("label", Datatype.BYTES), _spec("score", Datatype.FP32)),
)
RAGGED = Signature(inputs=(_spec("x", Datatype.FP32, DYNAMIC),), outputs=FOUR.outputs)


def _decode(signature: Signature, *values: bytes, keep: tuple[str, ...] = ()) -> list[Decoded]:
    return list(open_payload(PayloadRequest(keep=keep), signature).decode(values))


def test_json_payload__flat_rows__become_one_array() -> None:
    (found,) = _decode(FOUR, b'{"x":[1,2,3,4]}', b'{"x":[5,6.5,7,8],"id":"a:b"}')
    np.testing.assert_array_equal(
        found.inputs["x"], np.array([[1, 2, 3, 4], [5, 6.5, 7, 8]], np.float32)
    )
    assert found.inputs["x"].dtype == np.float32
    assert (list(found.kept), list(found.rows)) == ([0, 1], [1, 1])
    assert not found.rejected
    assert not found.carried


@pytest.mark.parametrize("count", [1, 20])
def test_json_payload__missing_values__only_of_inputs_that_may_lack_them(count: int) -> None:
    signature = Signature(
        inputs=(_spec("age", Datatype.FP64), _spec("city", Datatype.BYTES)), outputs=FOUR.outputs
    )
    values = [b'{"age":null,"city":"Oslo"}', b'{"age":41.0,"city":null}', b'{"age":41.0}'] * count
    missing = MissingValues(frozenset({"age", "city"}), frozenset({"city"}))
    payload = open_payload(PayloadRequest(missing=missing), signature)
    (found,) = payload.decode([*values, b'{"city":"Oslo"}'])
    assert set(found.rejected) == {3 * count}
    assert found.rejected[3 * count].startswith("input 'age' is missing")
    assert found.inputs["city"].tolist() == [b"Oslo", b"", b""] * count
    np.testing.assert_array_equal(found.inputs["age"], [math.nan, 41.0, 41.0] * count)
    (found,) = _decode(signature, *values)
    assert len(found.rejected) == 3 * count


def test_json_payload__null_among_several_rows__is_a_missing_value() -> None:
    signature = Signature(
        inputs=(_spec("age", Datatype.FP64), _spec("city", Datatype.BYTES)), outputs=FOUR.outputs
    )
    values = [
        b'{"age":[null,41.0],"city":["Oslo",null]}',
        b'{"city":["Oslo","Rome"]}',
        b'{"age":[true],"city":["Oslo"]}',
        b'{"age":{"a":1},"city":"Oslo"}',
    ]
    missing = MissingValues(frozenset({"age", "city"}), frozenset({"city"}))
    (found,) = open_payload(PayloadRequest(missing=missing), signature).decode(
        [*values, b'{"age":[41.0,null]}']
    )
    assert (list(found.kept), list(found.rows)) == ([0, 4], [2, 2])
    assert set(found.rejected) == {1, 2, 3}
    assert found.inputs["city"].tolist() == [b"Oslo", b"", b"", b""]
    np.testing.assert_array_equal(found.inputs["age"], [math.nan, 41.0, 41.0, math.nan])


def test_payload__one_bad_message__others_are_answered() -> None:
    values = [orjson.dumps({"x": [float(i)] * 4}) for i in range(100)]
    values[37] = b'{"x":[1,2,true,4]}'
    values[60] = b"not json"
    values[61] = b'{"x":[1,2,3]}'
    values[62] = b'{"y":[1,2,3,4]}'
    values[63] = b"[1,2,3,4]"
    values[64] = b'{"x":[1,2,3,4],"x":[1,2,3,4]}'
    values[65] = b'{"x":[1,2,3,1e39]}'
    (found,) = _decode(FOUR, *values)
    assert set(found.rejected) == {37, 60, 61, 62, 63, 64, 65}
    assert [int(row[0]) for row in found.inputs["x"]] == list(found.kept)
    assert sorted([*found.kept, *found.rejected]) == list(range(100))
    assert "true" not in found.rejected[61]
    assert "True is not of datatype FP32" in found.rejected[37]
    assert "not valid JSON" in found.rejected[60]
    assert "[3]" in found.rejected[61] or "[1, 3]" in found.rejected[61]
    assert "'x' is missing" in found.rejected[62]
    assert "given twice" in found.rejected[64]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (Datatype.FP32, "true"),
        (Datatype.FP32, "null"),
        (Datatype.FP32, '"1"'),
        (Datatype.FP32, "[1]"),
        (Datatype.FP32, "1e39"),
        (Datatype.INT64, "false"),
        (Datatype.INT64, "2.5"),
        (Datatype.INT64, "9223372036854775808"),
        (Datatype.UINT8, "-1"),
        (Datatype.UINT8, "256"),
    ],
)
def test_json_payload__one_wrong_number_of_many__is_rejected_alone(
    dtype: Datatype, value: str
) -> None:
    signature = Signature(inputs=(_spec("x", dtype, 2),), outputs=FOUR.outputs)
    values = [b'{"x":[%d,1]}' % (number % 100) for number in range(700)]
    values[300] = f'{{"x":[{value},0]}}'.encode()
    values[400] = b'{"x":[1,2,3]}'
    values[401] = b'{"x":[1]}'
    (found,) = _decode(signature, *values)
    assert sorted(found.rejected) == [300, 400, 401]
    assert list(found.kept) == [i for i in range(700) if i not in found.rejected]
    expected = [[i % 100, 1] for i in found.kept]
    np.testing.assert_array_equal(found.inputs["x"], np.array(expected, dtype.numpy_name))


def test_json_payload__broken_message__does_not_reach_its_neighbours() -> None:
    cut = [b'{"x":[1,2', b"3,4]}", b'{"x":[1,2,3,4]},{"x":[1,2,3,4]}']
    (found,) = _decode(FOUR, *cut)
    assert set(found.rejected) == {0, 1, 2}
    assert not found.kept


@pytest.mark.parametrize(
    "twice",
    [
        b'{"x":[1,2,3,4],"x":"\\u003a"}',
        b'{"x":[1,2,3,4],"n":{"a":1,"a":2}}',
        b'{"x":[1,2,3,4],"k:":1,"k:":1}',
    ],
)
def test_json_payload__duplicate_key__is_rejected_at_any_depth(twice: bytes) -> None:
    (found,) = _decode(FOUR, b'{"x":[1,2,3,4]}', twice)
    assert list(found.rejected) == [1]
    assert "given twice" in found.rejected[1]


def test_json_payload__nested_rows_scalars_and_texts__become_tensors() -> None:
    (found,) = _decode(
        WIDE,
        b'{"age":[3],"word":"a","picture":[[1,2],[3,4]]}',
        b'{"age":4,"word":"b","picture":[1,2,3,4]}',
    )
    assert found.inputs["age"].tolist() == [[3], [4]]
    assert found.inputs["word"].tolist() == [b"a", b"b"]
    assert found.inputs["picture"].tolist() == [[[1, 2], [3, 4]]] * 2


def test_json_payload__several_rows_in_a_message__are_answered_together() -> None:
    payload = open_payload(PayloadRequest(keep=("id",)), FOUR)
    values = [
        b'{"id":1,"x":[[1,2,3,4]]}',
        b'{"id":"b","x":[[1,2,3,4],[5,6,7,8]]}',
        b'{"x":[9,9,9,9]}',
        b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
    ]
    (found,) = payload.decode(values)
    assert list(found.rows) == [1, 2, 1, 1]
    answers = payload.encode({"y": found.inputs["x"]}, found.rows, found.carried)
    assert [orjson.loads(each) for each in answers] == [
        {"id": 1, "y": [[1, 2, 3, 4]]},
        {"id": "b", "y": [[1, 2, 3, 4], [5, 6, 7, 8]]},
        {"y": [9, 9, 9, 9]},
        {"y": [[1, 2, 3, 4]]},
    ]


def test_json_payload__kept_fields__are_returned_unchanged() -> None:
    payload = open_payload(PayloadRequest(keep=("id", "deep")), FOUR)
    values = [
        b'{"x":[1,2,3,4],"id":18446744073709551615,"deep":{"a":[null,"b"]}}',
        b'{"x":[1,2,3,4],"id":123456789012345678901234567890}',
    ]
    (found,) = payload.decode(values)
    assert list(found.rejected) == [1]
    (answer,) = payload.encode({"y": found.inputs["x"]}, found.rows, found.carried)
    assert orjson.loads(answer) == {
        "id": 18446744073709551615,
        "deep": {"a": [None, "b"]},
        "y": [1, 2, 3, 4],
    }


def test_json_payload__kept_field_that_cannot_be_written__fails_its_message_alone() -> None:
    payload = open_payload(PayloadRequest(keep=("id",)), FOUR)
    deep = b"[" * 300 + b"]" * 300
    (found,) = payload.decode([b'{"x":[1,2,3,4],"id":' + deep + b"}"])
    assert not found.rejected
    with pytest.raises(MlctlError, match="nested too deeply"):
        payload.encode({"y": found.inputs["x"]}, found.rows, found.carried)


def test_json_payload__rows_of_different_lengths__are_scored_apart() -> None:
    found = _decode(RAGGED, b'{"x":[1,2]}', b'{"x":[1]}', b'{"x":[3,4]}', b"{}")
    assert [each.inputs["x"].shape for each in found] == [(2, 2), (1, 1)]
    assert [list(each.kept) for each in found] == [[0, 2], [1]]
    assert [set(each.rejected) for each in found] == [{3}, set()]


def test_payload__limits__are_checked_before_decoding() -> None:
    payload = open_payload(PayloadRequest(max_bytes=100, max_rows=2), FOUR)
    values = [
        b'{"x":[1,2,3,4]}',
        b'{"x":[1,2,3,4]}' + b" " * 100,
        b'{"x":[[1,2,3,4],[1,2,3,4],[1,2,3,4]]}',
        b"[" * 90,
        b'{"x":[]}',
    ]
    (found,) = payload.decode(values)
    assert list(found.kept) == [0]
    assert "115 bytes" in found.rejected[1]
    assert "3 rows" in found.rejected[2]
    assert set(found.rejected) == {1, 2, 3, 4}


def test_json_payload__answers__are_those_of_the_server() -> None:
    payload = open_payload(PayloadRequest(), WIDE)
    outputs = {
        "label": np.array([b"a\xc3\xa4", b'"'], object),
        "score": np.array([0.1, 1e-9], np.float32),
    }
    assert payload.encode(outputs, [1, 1]) == [
        '{"label":"a\u00e4","score":0.1}'.encode(),
        b'{"label":"\\"","score":1e-9}',
    ]
    assert payload.encode(outputs, [2]) == ['{"label":["aä","\\""],"score":[0.1,1e-9]}'.encode()]


@pytest.mark.parametrize("shape", [(3,), (3, 0), (3, 1), (3, 2, 2), (3, 1, 2, 1), (0, 4)])
def test_json_payload__rows_of_any_shape__are_divided(shape: tuple[int, ...]) -> None:
    outputs = (_spec("y", Datatype.FP64, *shape[1:]),)
    payload = open_payload(PayloadRequest(), Signature(inputs=FOUR.inputs, outputs=outputs))
    array = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    found = payload.encode({"y": array}, [1] * shape[0])
    assert [orjson.loads(each)["y"] for each in found] == array.tolist()
    if shape[0]:
        (whole,) = payload.encode({"y": array}, [shape[0]])
        assert orjson.loads(whole)["y"] == array.tolist()


def test_json__value_without_a_json_form__is_an_error() -> None:
    payload = open_payload(PayloadRequest(), FOUR)
    with pytest.raises(MlctlError, match="not finite"):
        payload.encode({"y": np.array([[1, 2, 3, math.nan]], np.float32)}, [1])


def test_json__keep_all__answers_have_every_field() -> None:
    payload = open_payload(PayloadRequest(keep=("*",)), FOUR)
    values = [b'{"id":1,"x":[1,2,3,4]}', b'{"x":[1,2,3,4],"y":7}', b'{"x":[1,2,3,4],"at":{"a":[]}}']
    (found,) = payload.decode(values)
    assert found.rejected == {1: "field 'y' has the name of an output"}
    answers = payload.encode({"y": found.inputs["x"]}, found.rows, found.carried)
    assert [orjson.loads(each) for each in answers] == [
        {"id": 1, "x": [1, 2, 3, 4], "y": [1, 2, 3, 4]},
        {"x": [1, 2, 3, 4], "at": {"a": []}, "y": [1, 2, 3, 4]},
    ]


def test_json_payload__invalid_request__is_rejected() -> None:
    with pytest.raises(MlctlError, match="only json messages can keep all"):
        open_payload(PayloadRequest("raw", keep=("*",)), FOUR)
    with pytest.raises(MlctlError, match="an output has that name"):
        open_payload(PayloadRequest(keep=("y",)), FOUR)
    with pytest.raises(MlctlError, match="unknown format"):
        open_payload(PayloadRequest("xml"), FOUR)


_VALUES = st.one_of(
    st.integers(-3, 300), st.floats(width=32), st.booleans(), st.text(max_size=2), st.none()
)
_ROWS = st.one_of(
    st.lists(_VALUES, max_size=4), st.lists(st.integers(0, 9), min_size=2, max_size=2)
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([Datatype.FP32, Datatype.UINT8, Datatype.BYTES, Datatype.BOOL]),
    st.lists(st.one_of(_ROWS, st.lists(_ROWS, max_size=2), _VALUES), min_size=1, max_size=12),
)
def test_json__message__means_the_same_as_for_predict(dtype: Datatype, rows: list[object]) -> None:
    """Accepted with the same values or refused, and never changed by its neighbours."""
    signature = Signature(inputs=(_spec("x", dtype, 2),), outputs=FOUR.outputs)
    payload = open_payload(PayloadRequest(), signature)
    values = [orjson.dumps({"x": row}) for row in rows]
    found = {}
    for item in payload.decode(values):
        start = 0
        for index, count in zip(item.kept, item.rows, strict=True):
            found[index] = item.inputs["x"][start : start + count].tolist()
            start += count
    for index, value in enumerate(values):
        row = orjson.loads(value)["x"]
        try:
            several = to_array(signature.inputs[0], row).tolist()
        except MlctlError:
            several = None
        try:
            one = to_array(signature.inputs[0], [row]).tolist()
        except MlctlError:
            one = None
        assert found.get(index) == (several or one or None)
