"""The client's side of the protocol against the server's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bento.clients.runtime.errors import InvalidInputError, ServerError
from bento.clients.runtime.specs import NUMPY, Array, Spec
from bento.clients.runtime.wire import LENGTH_HEADER, decode, encode
from bundle.tensors import Datatype
from services.online.openapi.model import describe
from services.protocol.codec import V2Codec
from services.protocol.json_data import BINARY_ONLY
from tests.bento.clients.models import DIGEST, every_datatype

SIGNATURE = every_datatype()
SPECS = tuple(
    Spec(each.name, each.field, each.dtype.value, each.shape)
    for each in describe("m", DIGEST, SIGNATURE).inputs
)
CODEC = V2Codec("m", DIGEST, SIGNATURE)


def values(spec: Spec, shape: tuple[int, ...] = (2, 3, 2)) -> Array:
    numbers = np.random.default_rng(7).integers(0, 120, shape)
    if spec.datatype == "BYTES":
        return np.array([b"%d \xc3\xa4" % each for each in numbers.flat], object).reshape(shape)
    if spec.datatype == "BOOL":
        return np.equal(numbers % 2, 0)
    found: Array = numbers.astype(NUMPY[spec.datatype])
    return found


def asked(specs: tuple[Spec, ...], *, binary: bool) -> tuple[Any, dict[str, Array]]:
    """What the server understands of a request, and what was sent."""
    arrays = {spec.name: spec.fit(values(spec)) for spec in specs}
    body, headers = encode(specs, arrays, {"timeout": 1_500_000}, binary=binary)
    length = headers.get(LENGTH_HEADER)
    return CODEC.decode(body, None if length is None else int(length)), arrays


def test_the_datatypes_are_those_of_the_server() -> None:
    assert {each.value: each.numpy_name for each in Datatype} == NUMPY


@pytest.mark.parametrize("binary", [True, False])
def test_requests_and_answers_keep_every_value(binary: bool) -> None:
    specs = tuple(s for s in SPECS if binary or Datatype(s.datatype) not in BINARY_ONLY)
    request, sent = asked(specs, binary=binary)
    assert request.timeout == 1.5
    assert set(request.inputs) == set(sent)
    for name, array in sent.items():
        assert request.inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(request.inputs[name], array)
    wanted = request._replace(outputs={spec.name: binary for spec in specs})
    answer = CODEC.encode(wanted, request.inputs, {"source": "model"})
    headers = {"x-request-id": "r"}
    if answer.header_length is not None:
        headers[LENGTH_HEADER] = str(answer.header_length)
    arrays, meta = decode(specs, headers, answer.body)
    assert (meta.model_name, meta.model_digest, meta.request_id) == ("m", DIGEST, "r")
    assert meta.parameters == {"source": "model"}
    for name, array in sent.items():
        assert arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)


def test_a_request_has_the_same_bytes_before_its_data() -> None:
    spec = SPECS[-3]
    first, second = (
        encode((spec,), {spec.name: values(spec) + each}, {}, binary=True) for each in (0, 1)
    )
    length = int(first[1][LENGTH_HEADER])
    assert first[0][:length] == second[0][:length]
    assert first[0][length:] != second[0][length:]


def test_json_has_no_form_of_some_values() -> None:
    bits = next(spec for spec in SPECS if spec.datatype == "BF16")
    with pytest.raises(InvalidInputError, match="no form of"):
        encode((bits,), {bits.name: values(bits)}, {}, binary=False)
    floats = next(spec for spec in SPECS if spec.datatype == "FP32")
    with pytest.raises(InvalidInputError, match="not finite"):
        encode((floats,), {floats.name: values(floats) * np.float32(np.nan)}, {}, binary=False)
    texts = next(spec for spec in SPECS if spec.datatype == "BYTES")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        encode((texts,), {texts.name: np.array([b"\xff"], object)}, {}, binary=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"outputs": 1}',
        b'{"model_name": "m", "outputs": []}',
        b'{"model_name": "m", "outputs": [{"name": "FP32/in", "shape": [1], "data": [1]}]}',
        b'{"model_name": "m", "outputs": [{"name": "FP32/in", "shape": [1, 3, 1], "data": [1]}]}',
    ],
)
def test_what_is_no_answer_is_the_servers_fault(body: bytes) -> None:
    floats = next(spec for spec in SPECS if spec.datatype == "FP32")
    with pytest.raises(ServerError):
        decode((floats,), {}, body)


def test_shapes_and_dtypes_are_checked_before_sending() -> None:
    spec = Spec("x", "x", "FP32", (-1, 4))
    with pytest.raises(InvalidInputError, match=r"shape \[2, 3\], expected \[-1, 4\]"):
        spec.fit(np.zeros((2, 3), np.float32))
    with pytest.raises(InvalidInputError, match="dtype float64, expected float32"):
        spec.fit(np.zeros((2, 4)))
    assert spec.fit([[1, 2, 3, 4]]).dtype == np.float32
    with pytest.raises(InvalidInputError, match="no array of FP32"):
        spec.fit([["a"] * 4])
    texts = Spec("t", "t", "BYTES", (-1,))
    assert list(texts.fit(["a", b"b"])) == [b"a", b"b"]
    with pytest.raises(InvalidInputError, match="holds a int"):
        texts.fit([1])
