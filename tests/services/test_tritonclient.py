"""Requests as tritonclient writes them and answers as it reads them, for every datatype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import _utils as triton_grpc_utils

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.compression import CODINGS, deflate, inflate
from mlctl.services.protocol.json_data import BINARY_ONLY
from mlctl.services.protocol.messages import methods

HTTP: Any = tritonclient.http
GRPC: Any = tritonclient.grpc


def sample(dtype: Datatype, rows: int = 3) -> np.ndarray:
    """What a user of the client passes: texts as objects, BF16 as ml_dtypes has it."""
    if dtype is Datatype.BYTES:
        texts = ["", "grün", "a:b"] * rows
        return np.array([text.encode() for text in texts][: rows * 2], object).reshape(rows, 2)
    numbers = np.arange(rows * 2).reshape(rows, 2)
    if dtype is Datatype.BF16:
        return numbers.astype(ml_dtypes.bfloat16)
    return numbers.astype(dtype.numpy_name)


def signature(dtype: Datatype) -> Signature:
    specs = tuple(TensorSpec(name=name, dtype=dtype, shape=(-1, 2)) for name in ("t", "u"))
    return Signature(inputs=specs, outputs=specs)


def tensors(module: Any, dtype: Datatype, rows: int, **options: Any) -> list[Any]:
    found = []
    for name in ("t", "u"):
        tensor = module.InferInput(name, [rows, 2], dtype.value)
        found.append(tensor.set_data_from_numpy(sample(dtype, rows), **options))
    return found


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", Datatype)
def test_tritonclient__http_each_datatype__is_read_and_answered(
    dtype: Datatype, binary: bool, rows: int
) -> None:
    binary = binary or dtype in BINARY_ONLY
    inputs = tensors(HTTP, dtype, rows, binary_data=binary)
    wanted = [
        HTTP.InferRequestedOutput("u", binary_data=binary),
        HTTP.InferRequestedOutput("t", binary_data=True),
    ]
    body, json_size = HTTP.InferenceServerClient.generate_request_body(
        inputs, outputs=wanted, request_id="r", priority=1, timeout=5_000_000
    )
    codec = V2Codec("m", "v", signature(dtype))
    request = codec.decode(bytes(body), json_size)
    assert (request.timeout, request.priority) == (5.0, "high")
    body, header_length = codec.encode(request, request.inputs)
    for coding in (None, *CODINGS):
        packed = body if coding is None else deflate(body, coding)
        answer = HTTP.InferenceServerClient.parse_response_body(
            packed, header_length=header_length, content_encoding=coding
        )
        assert [output["name"] for output in answer.get_response()["outputs"]] == ["u", "t"]
        assert answer.get_response()["id"] == "r"
        for name in ("t", "u"):
            found = answer.as_numpy(name)
            if dtype is Datatype.BYTES and not binary and name == "u":  # JSON has texts
                found = np.array([text.encode() for text in found.flat], object).reshape(rows, 2)
            np.testing.assert_array_equal(found, sample(dtype, rows))


@pytest.mark.parametrize("dtype", Datatype)
def test_tritonclient__http_by_default__asks_for_binary_answers(dtype: Datatype) -> None:
    body, json_size = HTTP.InferenceServerClient.generate_request_body(tensors(HTTP, dtype, 1))
    codec = V2Codec("m", "v", signature(dtype))
    assert codec.decode(bytes(body), json_size).outputs == {"t": True, "u": True}


def test_tritonclient__compressed_request__is_read_the_same() -> None:
    inputs = tensors(HTTP, Datatype.FP32, 3)
    body, json_size = HTTP.InferenceServerClient.generate_request_body(inputs)
    for coding in CODINGS:
        whole = inflate(deflate(bytes(body), coding), coding, len(body))
        request = V2Codec("m", "v", signature(Datatype.FP32)).decode(whole, json_size)
        np.testing.assert_array_equal(request.inputs["u"], sample(Datatype.FP32))


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("dtype", Datatype)
def test_tritonclient__grpc_each_datatype__is_read_and_answered(dtype: Datatype, rows: int) -> None:
    theirs: Any = triton_grpc_utils._get_inference_request(
        "m", tensors(GRPC, dtype, rows), "", "r", [GRPC.InferRequestedOutput("u")],
        0, False, False, 1, 5_000_000, None,
    )  # fmt: skip
    method = methods()["ModelInfer"]
    codec = GrpcCodec("m", "v", signature(dtype))
    request = codec.decode(method.request.FromString(theirs.SerializeToString()))
    assert (request.timeout, request.priority) == (5.0, "high")
    ours = codec.encode(method.response, request, request.inputs)
    answer = GRPC.InferResult(
        GRPC.service_pb2.ModelInferResponse.FromString(ours.SerializeToString())
    )
    np.testing.assert_array_equal(answer.as_numpy("u"), sample(dtype, rows))
    assert answer.as_numpy("t") is None
