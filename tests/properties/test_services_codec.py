"""Any tensor survives the wire in every form that can carry it; any bytes are refused politely."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.json_data import BINARY_ONLY
from mlctl.services.protocol.messages import methods
from mlctl.services.protocol.wire import InferRequest, encode_raw


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Datatype, np.ndarray]:
    dtype = draw(st.sampled_from(list(Datatype)))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    if dtype is Datatype.BYTES:
        count = int(np.prod(shape))
        texts = draw(st.lists(st.text(max_size=5), min_size=count, max_size=count))
        values = np.empty(count, dtype=object)
        values[:] = [text.encode() for text in texts]
        return dtype, values.reshape(shape)
    wanted = np.dtype(dtype.numpy_name)
    elements = hnp.from_dtype(wanted, allow_nan=False, allow_infinity=False)
    return dtype, draw(hnp.arrays(wanted, shape, elements=elements))


def signature_of(dtype: Datatype, array: np.ndarray) -> Signature:
    spec = TensorSpec(name="t", dtype=dtype, shape=(-1,) * array.ndim)
    return Signature(inputs=(spec,), outputs=(spec,))


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())


@given(tensors(), st.booleans())
@settings(deadline=None)
def test_http_codec__encoded_outputs__are_decoded_unchanged(
    tensor: tuple[Datatype, np.ndarray], binary: bool
) -> None:
    dtype, array = tensor
    binary = binary or dtype in BINARY_ONLY
    codec = V2Codec("m", "v", signature_of(dtype, array))
    body, cut = codec.encode(InferRequest("", {}, {"t": binary}), {"t": array})
    document = json.loads(body[:cut])
    head = json.dumps({"inputs": document["outputs"]}).encode()
    rest = b"" if cut is None else body[cut:]
    found = codec.decode(head + rest, len(head) if binary else None)
    assert same(found.inputs["t"], array)


@given(tensors())
@settings(deadline=None)
def test_grpc_codec__raw_contents__are_decoded_unchanged(
    tensor: tuple[Datatype, np.ndarray],
) -> None:
    dtype, array = tensor
    message: Any = methods()["ModelInfer"].request(raw_input_contents=[encode_raw(dtype, array)])
    message.inputs.add(name="t", datatype=dtype.value, shape=array.shape)
    decoded = GrpcCodec("m", "v", signature_of(dtype, array)).decode(message)
    assert same(decoded.inputs["t"], array)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "datatype", "shape", "data", "parameters", "t"]),
            inner,
        )
    ),
    max_leaves=8,
)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("t") | JSON,
        "datatype": st.sampled_from(list(Datatype)) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        "data": JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": JSON}) | JSON,
    },
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(TENSOR, max_size=2) | JSON}, optional={"outputs": JSON, "id": JSON}
)


@given(
    st.sampled_from(list(Datatype)),
    st.binary(max_size=40) | REQUEST.map(lambda document: json.dumps(document).encode()),
    st.none() | st.integers(0, 60),
)
@settings(deadline=None, max_examples=300)
def test_http_codec__any_body__is_decoded_or_invalid_input(
    dtype: Datatype, body: bytes, header_length: int | None
) -> None:
    codec = V2Codec("m", "v", signature_of(dtype, np.zeros((1, 1))))
    try:
        request = codec.decode(body, header_length)
    except MlctlError as error:
        assert error.code is ErrorCode.INVALID_INPUT
        assert error.message
    else:
        assert request.inputs.keys() <= {"t"}


KEPT = st.fixed_dictionaries(
    {
        "name": st.just("t"),
        "shape": st.lists(st.integers(0, 4), min_size=1, max_size=1),
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(0, 16)}),
    }
)


@given(st.sampled_from(list(Datatype)), KEPT, st.binary(max_size=16), st.booleans())
@settings(deadline=None)
def test_http_codec__cached_header__changes_no_response(
    dtype: Datatype, tensor: dict[str, Any], binary: bytes, wanted: bool
) -> None:
    document = {
        "inputs": [{**tensor, "datatype": dtype.value}],
        "parameters": {"binary_data_output": wanted},
    }
    head = json.dumps(document).encode()
    signature = signature_of(dtype, np.zeros(1))
    codec = V2Codec("m", "v", signature)
    answers = [outcome(codec, head + binary, len(head)) for _ in range(2)]
    assert (
        answers[0] == answers[1] == outcome(V2Codec("m", "v", signature), head + binary, len(head))
    )


def outcome(codec: V2Codec, body: bytes, header_length: int) -> object:
    try:
        request = codec.decode(body, header_length)
    except MlctlError as error:
        return error.code, error.message
    arrays = {name: (array.shape, array.tolist()) for name, array in request.inputs.items()}
    return request.id, arrays, dict(request.outputs), request.timeout, request.priority


PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "priority", "classification", "note"]),
    st.fixed_dictionaries({}, optional={"int64_param": st.integers(-3, 3)})
    | st.fixed_dictionaries({"string_param": st.text(max_size=3)}),
    max_size=2,
)
CONTENTS = st.one_of(
    [
        st.fixed_dictionaries({field: st.lists(values, max_size=4)})
        for field, values in {
            "bool_contents": st.booleans(),
            "int_contents": st.integers(-(1 << 31), (1 << 31) - 1),
            "uint64_contents": st.integers(0, (1 << 64) - 1),
            "fp32_contents": st.floats(width=32),
            "bytes_contents": st.binary(max_size=4),
        }.items()
    ]
)


@given(
    st.sampled_from(list(Datatype)),
    st.sampled_from(["t", "", "\0"]),
    st.lists(st.integers(-1, 1 << 40) | st.integers(0, 4), max_size=3),
    st.none() | CONTENTS,
    st.lists(st.binary(max_size=16), max_size=2),
    PARAMETERS,
)
@settings(deadline=None, max_examples=300)
def test_codec__any_grpc_message__is_decoded_or_rejected(
    dtype: Datatype,
    name: str,
    shape: list[int],
    contents: dict[str, list[Any]] | None,
    raw: list[bytes],
    parameters: dict[str, dict[str, Any]],
) -> None:
    message: Any = methods()["ModelInfer"].request(raw_input_contents=raw)
    message.inputs.add(name=name, datatype=dtype.value, shape=shape, contents=contents)
    for key, value in parameters.items():
        message.parameters[key].SetInParent()
        for field, given_value in value.items():
            setattr(message.parameters[key], field, given_value)
    codec = GrpcCodec("m", "v", signature_of(dtype, np.zeros((1, 1))))
    try:
        request = codec.decode(message)
    except MlctlError as error:
        assert error.code in {ErrorCode.INVALID_INPUT, ErrorCode.PAYLOAD_TOO_LARGE}
    else:
        assert request.inputs["t"].shape == tuple(shape)
