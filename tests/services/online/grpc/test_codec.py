from typing import Any

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.grpc.codec import FIELDS, GrpcCodec
from mlctl.services.protocol.messages import methods

SIGNATURE = Signature(
    inputs=tuple(
        TensorSpec(name=dtype.value, dtype=dtype, shape=(-1,))
        for dtype in (Datatype.INT8, Datatype.FP32, Datatype.BYTES, Datatype.FP16)
    ),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1, 2)),),
)
TYPELESS = (Datatype.FP16, Datatype.BF16)
CODEC = GrpcCodec("m", "v", SIGNATURE)


def request(*tensors: tuple[str, list[int], dict[str, Any]], raw: list[bytes] | None = None) -> Any:
    message = methods()["ModelInfer"].request(id="9", raw_input_contents=raw or [])
    for name, shape, contents in tensors:
        tensor = message.inputs.add(name=name, datatype=name, shape=shape)
        for field, values in contents.items():
            getattr(tensor.contents, field).extend(values)
    return message


def with_parameter(name: str, *, on: str = "", **value: Any) -> Any:
    message = request(("FP32", [1], {"fp32_contents": [1]}))
    owner = message.inputs[0] if on else message
    for field, given in value.items():
        setattr(owner.parameters[name], field, given)
    return message


def test_decode__typed_contents__are_arrays() -> None:
    decoded = CODEC.decode(
        request(
            ("INT8", [2], {"int_contents": [-1, 2]}),
            ("FP32", [1], {"fp32_contents": [0.5]}),
            ("BYTES", [2], {"bytes_contents": [b"a", b"\xff"]}),
        )
    )
    assert decoded.inputs["INT8"].dtype == np.int8
    assert decoded.inputs["INT8"].tolist() == [-1, 2]
    assert decoded.inputs["FP32"].tolist() == [0.5]
    assert decoded.inputs["BYTES"].tolist() == [b"a", b"\xff"]
    assert decoded.id == "9"


@pytest.mark.parametrize("dtype", [kind for kind in Datatype if kind not in TYPELESS])
def test_decode__typed_field_of_each_datatype__is_an_array(dtype: Datatype) -> None:
    spec = TensorSpec(name="t", dtype=dtype, shape=(-1,))
    codec = GrpcCodec("m", "v", Signature(inputs=(spec,), outputs=(spec,)))
    values: list[Any] = [0, 1, 1]
    if dtype is Datatype.BYTES:
        values = [b"", b"a", b"\xff"]
    elif np.dtype(dtype.numpy_name).kind in "iu":
        limits = np.iinfo(dtype.numpy_name)
        values = [limits.min, limits.max, 0]
    for given in (values, []):
        message: Any = methods()["ModelInfer"].request()
        tensor = message.inputs.add(name="t", datatype=dtype.value, shape=[len(given)])
        getattr(tensor.contents, FIELDS[dtype]).extend(given)
        found = codec.decode(message).inputs["t"]
        assert found.dtype == np.dtype(dtype.numpy_name)
        assert found.tolist() == given


def test_decode__too_many_typed_values__are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlctl.services.online.grpc.codec.MAX_VALUES", 3)
    assert CODEC.decode(request(("FP32", [3], {"fp32_contents": [1, 2, 3]}))).inputs
    with pytest.raises(MlctlError, match="4 elements in fp32_contents") as caught:
        CODEC.decode(request(("FP32", [4], {"fp32_contents": [1, 2, 3, 4]})))
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert CODEC.decode(request(("FP32", [4], {}), raw=[bytes(16)])).inputs


def test_decode__raw_contents__are_arrays_and_answers_are_raw() -> None:
    message = request(("FP16", [1], {}), raw=[np.array([2], "<f2").tobytes()])
    decoded = CODEC.decode(message)
    assert decoded.inputs["FP16"].tolist() == [2]
    answer = CODEC.encode(
        methods()["ModelInfer"].response, decoded, {"y": np.array([[1, 2]], np.float32)}
    )
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "v", "9")
    assert list(answer.outputs[0].shape) == [1, 2]
    assert answer.raw_output_contents == [np.array([1, 2], "<f4").tobytes()]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (request(("FP32", [2], {"fp32_contents": [1]})), "1 elements, expected 2"),
        (request(("FP32", [1], {"fp64_contents": [1]})), "fp32_contents has 0"),
        (request(("INT8", [1], {"int_contents": [300]})), "outside of -128 to 127"),
        (request(("FP16", [1], {})), "needs raw_input_contents"),
        (request(("FP32", [1], {}), raw=[b"", b""]), "2 elements for 1 inputs"),
        (request(("FP32", [1], {"fp32_contents": [1]}), raw=[b"\0" * 4]), "both contents"),
        (request(("FP32", [1], {"fp32_contents": [1]}), ("FP32", [1], {})), "given twice"),
        (request(("FP64", [1], {})), "'FP64' is unknown"),
        (with_parameter("timeout", int64_param=0), "'timeout' must be a positive"),
        (with_parameter("priority", string_param="first"), "priority must be"),
        (with_parameter("sequence_id", uint64_param=1), "'sequence_id'.*not served"),
        (with_parameter("classification", on="FP32", int64_param=1), "'FP32'.*not served"),
    ],
)
def test_decode__invalid_message__is_rejected_with_the_reason(message: Any, complaint: str) -> None:
    with pytest.raises(MlctlError, match=complaint):
        CODEC.decode(message)
