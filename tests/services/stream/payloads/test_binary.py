"""Arrow and raw messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.errors import MlctlError
from bundle.tensors import DYNAMIC, Datatype, MissingValues, Signature, TensorSpec
from services.stream.payloads import PayloadRequest, open_payload


def _spec(name: str, dtype: Datatype, *row: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(DYNAMIC, *row))


FOUR = Signature(
    inputs=(_spec("x", Datatype.FP32, 4),),
    outputs=(_spec("y", Datatype.FP32, 2), _spec("label", Datatype.BYTES)),
)
PLAIN = Signature(
    inputs=(_spec("flag", Datatype.BOOL), _spec("a", Datatype.INT16, 2)),
    outputs=(_spec("y", Datatype.FP64), _spec("z", Datatype.UINT8, 3)),
)
RAGGED = Signature(inputs=(_spec("x", Datatype.FP32, DYNAMIC),), outputs=FOUR.outputs)


def _message(columns: Mapping[str, Sequence[object]], **kinds: pa.DataType) -> bytes:
    table = pa.table({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _answer(value: bytes) -> dict[str, list[object]]:
    with pa.ipc.open_stream(value) as reader:
        found: dict[str, list[object]] = reader.read_all().to_pydict()
    return found


def _compressed(table: pa.Table, codec: str = "zstd") -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("batches", [1, 3])
def test_arrow__compressed__is_rejected(codec: str, batches: int) -> None:
    table = pa.table({"x": [[float(n)] * 4 for n in range(1000)]})
    payload = open_payload(PayloadRequest("arrow"), FOUR)
    plain, packed = _message({"x": [[1.0] * 4]}), _compressed(table, codec)
    if batches > 1:  # The last one of them is compressed.
        parts = table.to_batches(max_chunksize=400)
        packed = _batches([(parts[0], None), (parts[1], None), (parts[2], codec)])
    (found,) = payload.decode([packed, plain])
    assert list(found.kept) == [1]
    assert "compressed Arrow messages" in found.rejected[0]


def test_arrow__null_in_a_nullable_input__is_a_missing_value() -> None:
    signature = Signature(inputs=(_spec("x", Datatype.FP32),), outputs=FOUR.outputs)
    message = _message({"x": [1.0, None]}, x=pa.float32())
    (strict,) = open_payload(PayloadRequest("arrow"), signature).decode([message])
    assert "null" in strict.rejected[0]
    request = PayloadRequest("arrow", missing=MissingValues(frozenset({"x"})))
    (found,) = open_payload(request, signature).decode([message])
    np.testing.assert_array_equal(found.inputs["x"], np.array([1.0, np.nan], np.float32))


def _batches(parts: Sequence[tuple[pa.RecordBatch, str | None]]) -> bytes:
    """An IPC stream whose batches are compressed or not, each by itself."""
    content = [parts[0][0].schema.serialize().to_pybytes()]
    for batch, codec in parts:
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
                head = len(content[0])
                writer.write_batch(batch)
            content.append(sink.getvalue().to_pybytes()[head:-8])
    return b"".join(content) + b"\xff\xff\xff\xff\0\0\0\0"


def _bomb(form: str) -> bytes:
    text, many = "a" * 300_000, pa.array([0] * 1000, pa.int8())
    match form:
        case "buffer":
            return _compressed(pa.table({"x": ["a" * 3_000_000]}))
        case "dictionary":
            letters = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), [text * 10])
            return _compressed(pa.table({"x": letters}))
        case "rows":
            return _message({"x": pa.DictionaryArray.from_arrays(many, [text])})
        case _:
            ends = pa.array([0, 2_000_000_000], pa.int32())
            return _message({"x": pa.ListArray.from_arrays(ends, pa.nulls(2_000_000_000))})


@pytest.mark.parametrize("form", ["buffer", "dictionary", "rows", "nulls"])
def test_arrow__compressed_message__is_rejected(form: str) -> None:
    text = Signature(inputs=(_spec("x", Datatype.BYTES),), outputs=FOUR.outputs)
    signature = RAGGED if form == "nulls" else text
    payload = open_payload(PayloadRequest("arrow", max_bytes=1 << 20), signature)
    bomb = _bomb(form)
    assert len(bomb) < 400_000
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    (found,) = payload.decode([bomb])
    assert ("lists of nulls" if form == "nulls" else "dictionaries") in found.rejected[0]
    assert pool.max_memory() - before < 1 << 20


def test_arrow__keep_all__answers_have_every_column() -> None:
    payload = open_payload(PayloadRequest("arrow", keep=("*",)), FOUR)
    x = [[1.0, 2, 3, 4]]
    values = [_message({"id": [1], "x": x}), _message({"x": x, "label": ["z"]})]
    found = [each for each in payload.decode(values) if len(each.kept)]
    rejected = [each.rejected for each in payload.decode(values) if each.rejected]
    assert rejected == [{1: "column 'label' has the name of an output"}]
    outputs = {"y": np.zeros((1, 2), np.float32), "label": np.array([b"p"], object)}
    answers = payload.encode(outputs, found[0].rows, found[0].carried)
    assert [_answer(each) for each in answers] == [
        {"id": [1], "x": x, "y": [[0, 0]], "label": ["p"]}
    ]


def test_arrow_payload__several_rows__return_to_their_messages() -> None:
    payload = open_payload(PayloadRequest("arrow", keep=("id",)), FOUR)
    values = [
        _message({"id": [1, 2], "x": [[1.0, 2, 3, 4], [5.0, 6, 7, 8]]}),
        _message({"id": ["b"], **{f"x_{i}": [float(i)] for i in range(4)}}),
    ]
    (found,) = payload.decode(values)
    assert (list(found.kept), list(found.rows)) == ([0, 1], [2, 1])
    assert found.inputs["x"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [0, 1, 2, 3]]
    outputs = {
        "y": np.arange(6, dtype=np.float32).reshape(3, 2),
        "label": np.array([b"p", b"q", b"r"], object),
    }
    answers = payload.encode(outputs, found.rows, found.carried)
    assert [_answer(each) for each in answers] == [
        {"id": [1, 2], "y": [[0, 1], [2, 3]], "label": ["p", "q"]},
        {"id": ["b"], "y": [[4, 5]], "label": ["r"]},
    ]


def test_arrow__bad_messages__others_are_answered() -> None:
    payload = open_payload(PayloadRequest("arrow", max_rows=3, max_bytes=5000), FOUR)
    good = _message({"x": [[1.0, 2, 3, 4]]})
    values = [
        good,
        b"not arrow",
        good[: len(good) // 2],
        _message({"x": [[1.0, 2, 3, 4], [1.0, 2, 3]]}),
        _message({"z": [1]}),
        _message({"x": [[1.0, 2, 3, 4]] * 4}),
        _message({"x": pa.array([], pa.list_(pa.float32()))}),
        b"\0" * 6000,
        _message({"x": [[1.0, None, 3, 4]]}),
        good,
    ]
    (found,) = payload.decode(values)
    assert list(found.kept) == [0, 9]
    assert set(found.rejected) == set(range(1, 9))
    assert found.rejected[3].startswith("row 1: ")
    assert "no column feeds input 'x'" in found.rejected[4]
    assert "/" not in found.rejected[1]


def test_arrow_payload__rows_of_different_lengths__are_scored_apart() -> None:
    payload = open_payload(PayloadRequest("arrow"), RAGGED)
    values = [_message({"x": [[1.0]]}), _message({"x": [[1.0, 2]]}), _message({"x": [[3.0], []]})]
    found = payload.decode(values)
    assert [each.inputs["x"].shape for each in found] == [(1, 1), (1, 2)]
    assert "one length" in found[0].rejected[2]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_arrow__damaged_message__is_rejected_or_read(data: st.DataObject) -> None:
    good = bytearray(_message({"x": [[1.0, 2, 3, 4]], "t": ["word"]}))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    payload = open_payload(PayloadRequest("arrow"), FOUR)
    (found,) = payload.decode([bytes(good)])
    assert bool(found.rejected) != bool(found.kept)


def test_raw_payload__row__is_its_bytes() -> None:
    payload = open_payload(PayloadRequest("raw"), PLAIN)
    row = np.dtype([("flag", "?"), ("a", "<i2", 2)])
    table = np.array([(True, (1, -2)), (False, (3, 4)), (True, (5, 6))], row)
    values = [table[:1].tobytes(), b"", table[1:].tobytes(), b"\1\0", b"\2\0\0\0\0"]
    (found,) = payload.decode(values)
    assert (list(found.kept), list(found.rows)) == ([0, 2], [1, 2])
    assert found.inputs["a"].tolist() == [[1, -2], [3, 4], [5, 6]]
    assert found.inputs["flag"].tolist() == [True, False, True]
    assert found.inputs["a"].flags.c_contiguous
    assert set(found.rejected) == {1, 3, 4}
    assert "neither 0 nor 1" in found.rejected[4]
    outputs = {"y": np.arange(3.0), "z": np.arange(9, dtype=np.uint8).reshape(3, 3)}
    one, two = payload.encode(outputs, found.rows)
    assert one == np.float64(0).tobytes() + bytes([0, 1, 2])
    assert len(two) == 2 * (8 + 3)
    assert payload.encode(outputs, [1, 1, 1])[2] == two[11:]


def test_raw_payload__rows_without_a_fixed_size__are_rejected() -> None:
    for wanted, signature in (
        (PayloadRequest("raw"), FOUR),
        (PayloadRequest("raw"), RAGGED),
        (PayloadRequest("raw", keep=("id",)), PLAIN),
    ):
        with pytest.raises(MlctlError):
            open_payload(wanted, signature)
