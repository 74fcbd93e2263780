from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bundle.errors import MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.batching.rawrows import arrays_of
from services.grpc.codec import GrpcCodec
from services.lean_grpc.known import Memory, split
from services.lean_grpc.messages import frame
from services.v2.messages import methods

X = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2))
N = TensorSpec(name="n", dtype=Datatype.INT16, shape=(DYNAMIC, 100))
B = TensorSpec(name="b", dtype=Datatype.BOOL, shape=(DYNAMIC, 2))
Y = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 2))
SIGNATURE = Signature(inputs=(X, N), outputs=(Y,))
CODEC = GrpcCodec("tiny", "1", SIGNATURE)
REQUEST = methods()["ModelInfer"].request


def memory(signature: Signature = SIGNATURE, *, observer: object = None) -> Memory:
    host: Any = SimpleNamespace(signature=signature, observer=observer, join_key=lambda _: "key")
    return Memory(host)


def message(fill: int = 1, rows: int = 2, **fields: Any) -> Any:
    made = REQUEST(model_name="tiny", **fields)
    for spec in (X, N):
        made.inputs.add(name=spec.name, datatype=spec.dtype.value, shape=[rows, spec.shape[1]])
        array = np.full((rows, spec.shape[1]), fill, spec.dtype.numpy_name)
        made.raw_input_contents.append(array.tobytes())
    return made


def taught(memory: Memory, parsed: Any, codec: GrpcCodec = CODEC) -> bytes:
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


def test_what_does_not_last_is_not_kept() -> None:
    for made in (message(id="7"), message(rows=0)):
        kept = memory()
        assert kept.find(taught(kept, made)) is None
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
