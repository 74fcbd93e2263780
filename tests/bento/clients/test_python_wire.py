"""A generated Python client against the server's own codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype
from mlctl.services.online.openapi.model import describe
from mlctl.services.protocol.codec import V2Codec
from tests.bento.clients.models import DIGEST, every_datatype
from tests.bento.clients.rendered import load_client

MODEL = describe("alltypes", DIGEST, every_datatype())
CODEC = V2Codec(MODEL.name, DIGEST, every_datatype())
LENGTH = "inference-header-content-length"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_client(MODEL, tmp_path_factory.mktemp("client"))


def values(datatype: Datatype, shape: tuple[int, ...] = (2, 3, 2)) -> Any:
    numbers = np.random.default_rng(7).integers(0, 120, shape)
    if datatype is Datatype.BYTES:
        return np.array([b"%d \xc3\xa4" % each for each in numbers.flat], object).reshape(shape)
    return numbers.astype(datatype.numpy_name)


def request_of(client: Any) -> Any:
    return client.Request(**{each.field: values(each.dtype) for each in MODEL.inputs})


def test_encode_and_decode__every_datatype__keep_every_value(client: Any) -> None:
    request = request_of(client)
    body, headers = client.encode(request, 1_500_000)
    decoded = CODEC.decode(body, int(headers[LENGTH]))
    assert decoded.timeout == 1.5
    for each in MODEL.inputs:
        sent = getattr(request, each.field)
        assert decoded.inputs[each.name].dtype == sent.dtype
        np.testing.assert_array_equal(decoded.inputs[each.name], sent)
    content, length = CODEC.encode(decoded, decoded.inputs, {"source": "model"})
    answer_headers = {"x-request-id": "r", LENGTH: str(length)}
    response = client.decode(200, answer_headers, content)
    meta = (response.meta.model_name, response.meta.model_digest, response.meta.request_id)
    assert meta == (MODEL.name, DIGEST, "r")
    assert response.meta.parameters == {"source": "model"}
    for each in MODEL.outputs:
        np.testing.assert_array_equal(getattr(response, each.field), getattr(request, each.field))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"outputs": 1}',
        b'{"model_name": "m", "outputs": []}',
        b'{"model_name": "m", "outputs": [{"name": "no/in", "shape": [1, 3, 1]}]}',
        b'{"model_name": "m", "outputs": [{"name": "FP32/in", "shape": [1, 3, 1]}]}12345',
    ],
)
def test_decode__answer_outside_the_protocol__is_a_server_error(client: Any, body: bytes) -> None:
    with pytest.raises(client.ServerError):
        client.decode(200, {LENGTH: str(body.rindex(b"}") + 1 if b"}" in body else 0)}, body)
    with pytest.raises(client.ServerError):
        client.decode(200, {}, body)


def test_check__dtype_and_shape__are_checked_before_sending(client: Any) -> None:
    tensor = client.Tensor("x", "x", "FP32", (-1, 4))
    with pytest.raises(client.InvalidInputError, match=r"shape \[2, 3\], expected \[-1, 4\]"):
        tensor.check(np.zeros((2, 3), np.float32))
    with pytest.raises(client.InvalidInputError, match=r"shape \[2\], expected \[-1, 4\]"):
        tensor.check(np.zeros(2, np.float32))
    with pytest.raises(client.InvalidInputError, match="dtype float64, expected float32"):
        tensor.check(np.zeros((2, 4)))
    assert tensor.check([[1, 2, 3, 4]]).dtype == np.float32
    with pytest.raises(client.InvalidInputError, match="not an array of FP32"):
        tensor.check([["a"] * 4])
    texts = client.Tensor("t", "t", "BYTES", (-1,))
    assert list(texts.check(["a", b"b"])) == [b"a", b"b"]
    with pytest.raises(client.InvalidInputError, match="has a int"):
        texts.check([1])
