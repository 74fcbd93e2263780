from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import assume, given
from hypothesis import strategies as st

from bundle.errors import MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.online.batching.rawrows import arrays_of
from services.online.grpc.codec import GrpcCodec
from services.online.grpc.http2.ids import cut_id, field_head, id_in, is_id
from services.online.grpc.http2.known import KnownCalls, render, split, with_id
from services.online.grpc.http2.messages import frame
from services.protocol.messages import methods

X = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2))
N = TensorSpec(name="n", dtype=Datatype.INT16, shape=(DYNAMIC, 100))
B = TensorSpec(name="b", dtype=Datatype.BOOL, shape=(DYNAMIC, 2))
Y = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 2))
SIGNATURE = Signature(inputs=(X, N), outputs=(Y,))
CODEC = GrpcCodec("tiny", "1", SIGNATURE)
REQUEST = methods()["ModelInfer"].request
RESPONSE = methods()["ModelInfer"].response


def memory(signature: Signature = SIGNATURE, *, observer: object = None) -> KnownCalls:
    host: Any = SimpleNamespace(signature=signature, observer=observer, join_key=lambda _: "key")
    return KnownCalls(host)


def message(fill: int = 1, rows: int = 2, **fields: Any) -> Any:
    made = REQUEST(model_name="tiny", **fields)
    for spec in (X, N):
        made.inputs.add(name=spec.name, datatype=spec.dtype.value, shape=[rows, spec.shape[1]])
        array = np.full((rows, spec.shape[1]), fill, spec.dtype.numpy_name)
        made.raw_input_contents.append(array.tobytes())
    return made


def id_field(text: str) -> bytes:
    return field_head(b"\x1a", len(text.encode())) + text.encode()


def taught(memory: KnownCalls, parsed: Any, codec: GrpcCodec = CODEC) -> bytes:
    data: bytes = parsed.SerializeToString()
    parsed = REQUEST.FromString(data)
    memory.learn(data, parsed, codec.decode(parsed))
    return frame(data)


def test_other_tensors_are_read_where_they_are() -> None:
    kept = memory()
    taught(kept, message(1))
    other = message(7)
    data = frame(other.SerializeToString())
    known = kept.find(data)
    assert known is not None
    assert (known.rows, known.key, known.size) == (2, "key", len(data))
    found = arrays_of(SimpleNamespace(form=known.form, data=data))
    for name, array in CODEC.decode(other).inputs.items():
        np.testing.assert_array_equal(found[name], array)
    assert kept.find(frame(message(7, rows=3).SerializeToString())) is None


@given(st.integers(0, 1000), st.integers(0, 255), st.integers(0, 1000), st.integers(0, 255))
def test_whatever_is_taken_means_what_protobuf_says(at: int, byte: int, to: int, more: int) -> None:
    kept = memory()
    data = bytearray(taught(kept, message(1)))
    data[at % len(data)] = byte
    data[to % len(data)] = more
    known = kept.find(bytes(data))
    if known is None:
        return
    expected = CODEC.decode(REQUEST.FromString(bytes(data[5:])))
    found = arrays_of(SimpleNamespace(form=known.form, data=bytes(data)))
    assert found.keys() == expected.inputs.keys()
    for name, array in expected.inputs.items():
        assert found[name].tobytes() == array.tobytes()
    assert (known.timeout, known.priority) == (expected.timeout, expected.priority)
    assert known.request.outputs == expected.outputs


@given(st.text(max_size=300), st.text(max_size=300))
def test_an_id_is_no_part_of_it(first: str, second: str) -> None:
    kept = memory()
    taught(kept, message(1, id=first))
    made = message(7, id=second)
    data = frame(made.SerializeToString())
    known = kept.find(data)
    if not second.isascii():
        assert known is None
        return
    assert known is not None
    field = known.id_of(data)
    assert field is not None
    assert id_in(field) == second
    assert known.request.id == ""
    found = arrays_of(SimpleNamespace(form=known.form, data=data[len(field) :]))
    for name, array in CODEC.decode(made).inputs.items():
        np.testing.assert_array_equal(found[name], array)


@given(st.text("abc\u00e9", max_size=20_000), st.booleans(), st.integers(1, 3))
def test_the_answer_has_the_id_where_protobuf_writes_it(text: str, named: bool, rows: int) -> None:
    codec = GrpcCodec("tiny" if named else "", "1" if named else "", SIGNATURE)
    request = codec.decode(message(1, rows))
    outputs = {"y": np.ones((rows, 2), np.float32)}
    made = codec.encode(RESPONSE, request, outputs)
    answer = frame(made.SerializeToString())
    field = id_field(text)
    assume(is_id(field))
    place = render(made, ((2,),)).place
    made.id = text
    assert with_id(answer, place, field) == frame(made.SerializeToString())


@given(st.integers(0, 60), st.integers(0, 255), st.integers(0, 60), st.binary(max_size=6))
def test_whatever_is_taken_with_an_id_means_what_protobuf_says(
    at: int, byte: int, to: int, more: bytes
) -> None:
    kept = memory()
    taught(kept, message(1))
    data = bytearray(frame(message(7, id="an id").SerializeToString()))
    data[at] = byte
    data[to:to] = more
    known = kept.find(bytes(data))
    if known is None:
        return
    parsed = REQUEST.FromString(bytes(data[5:]))
    field = known.id_of(bytes(data))
    assert field is not None
    assert parsed.id == id_in(field)
    expected = CODEC.decode(parsed)
    found = arrays_of(SimpleNamespace(form=known.form, data=bytes(data[len(field) :])))
    for name, array in expected.inputs.items():
        assert found[name].tobytes() == array.tobytes()
    assert known.request == expected._replace(id="", inputs={})


def test_only_one_id_in_its_place_is_cut_out() -> None:
    whole = message(1).SerializeToString()
    start = cut_id(whole)[0]
    odd = (
        whole[:start] + id_field("a") + id_field("b") + whole[start:],
        whole[:start] + b"\x1a\x00" + whole[start:],
        whole[:start] + b"\x1a\x81\x00a" + whole[start:],
        id_field("a") + whole,
        whole + id_field("a"),
    )
    for data in odd:
        kept = memory()
        taught(kept, message(1))
        assert kept.find(frame(data)) is None
        parsed = REQUEST.FromString(data)
        alone = memory()
        alone.learn(data, parsed, CODEC.decode(parsed))
        assert alone.find(frame(data)) is None
    kept = memory()
    taught(kept, message(1))
    data = frame(message(1, id="a").SerializeToString())
    for wrong in (frame(data)[:5] + data[5:], b"\1" + data[1:], data[:-1], data + b"\0"):
        assert kept.find(wrong) is None


def test_what_says_that_it_has_no_id_after_where_one_would_be_is_not_kept() -> None:
    made = message(1)
    whole = made.SerializeToString()
    tail = b"".join(field_head(b"\x3a", len(raw)) + raw for raw in made.raw_input_contents)
    odd = whole[: -len(tail)] + b"\x1a\x00" + tail
    start = cut_id(odd)[0]
    assert REQUEST.FromString(odd[:start] + id_field("a") + odd[start:]).id == ""
    kept = memory()
    parsed = REQUEST.FromString(odd)
    kept.learn(odd, parsed, CODEC.decode(parsed))
    assert kept.find(frame(odd)) is None


def test_what_does_not_last_is_not_kept() -> None:
    kept = memory()
    assert kept.find(taught(kept, message(rows=0))) is None
    looked_at = Signature(inputs=(B,), outputs=(Y,))
    made = REQUEST(model_name="tiny")
    made.inputs.add(name="b", datatype="BOOL", shape=[1, 2])
    made.raw_input_contents.append(b"\1\0")
    kept = memory(looked_at)
    assert kept.find(taught(kept, made, GrpcCodec("tiny", "1", looked_at))) is None
    kept = memory(observer=object())
    assert kept.find(taught(kept, message())) is None


def test_an_end_that_only_looks_like_tensors() -> None:
    made = message()
    tail = made.SerializeToString()[-(sum(map(len, made.raw_input_contents)) + 5) :]
    odd = made.SerializeToString() + b"\xba\x3e" + bytes([len(tail) & 0x7F | 0x80, len(tail) >> 7])
    odd += tail  # a field that nobody knows, whose content ends as the message did
    parsed = REQUEST.FromString(odd)
    try:
        decoded = CODEC.decode(parsed)
    except (MlctlError, DecodeError):
        pytest.fail("the message is right, but for its last field")
    kept = memory()
    assert split(odd, parsed.raw_input_contents, b"\x3a") is not None
    kept.learn(odd, parsed, decoded)
    assert kept.find(frame(odd)) is None


def test_it_is_bounded() -> None:
    kept = memory()
    for number in range(1000):
        taught(kept, message(rows=1 + number % 40, model_version=str(number)))
    assert sum(map(len, kept._kept.values())) <= 256
