from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Datatype, Signature, TensorSpec
from services.codec import V2Codec

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2)),
        TensorSpec(name="w", dtype=Datatype.BYTES, shape=(-1,)),
    ),
    outputs=(
        TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1, 2)),
        TensorSpec(name="n", dtype=Datatype.INT64, shape=(-1,)),
    ),
)
CODEC = V2Codec("m", "d" * 64, SIGNATURE)
X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
W = {"name": "w", "datatype": "BYTES", "shape": [1], "data": ["a"]}
ANSWER = {"y": np.array([[1, 2]], np.float32), "n": np.array([7])}


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": [X, W], **fields}).encode()


def binary_x(size: int = 8) -> dict[str, Any]:
    return {**{k: v for k, v in X.items() if k != "data"}, "parameters": {"binary_data_size": size}}


def test_json_in_and_out() -> None:
    request = CODEC.decode(body(id="7"), None)
    assert request.inputs["x"].tolist() == [[1, 2]]
    assert request.inputs["w"].tolist() == [b"a"]
    encoded = CODEC.encode(request, ANSWER)
    assert encoded.header_length is None
    assert encoded.content_type == "application/json"
    assert json.loads(encoded.body) == {
        "model_name": "m",
        "model_version": "d" * 64,
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
            {"name": "n", "datatype": "INT64", "shape": [1], "data": [7]},
        ],
    }


def test_binary_in_and_out_beside_json() -> None:
    head = body(
        inputs=[binary_x(), W],
        outputs=[{"name": "n"}, {"name": "y", "parameters": {"binary_data": True}}],
    )
    request = CODEC.decode(head + np.array([3, 4], "<f4").tobytes(), len(head))
    assert request.inputs["x"].tolist() == [[3, 4]]
    encoded = CODEC.encode(request, ANSWER)
    assert encoded.content_type == "application/octet-stream"
    assert encoded.header_length is not None
    document = json.loads(encoded.body[: encoded.header_length])
    assert [output["name"] for output in document["outputs"]] == ["n", "y"]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 8}
    assert encoded.body[encoded.header_length :] == np.array([1, 2], "<f4").tobytes()


def test_binary_data_output_is_the_default_of_every_output() -> None:
    request = CODEC.decode(body(parameters={"binary_data_output": True}), None)
    assert request.outputs == {"y": True, "n": True}
    mixed = CODEC.decode(
        body(
            parameters={"binary_data_output": True},
            outputs=[{"name": "y"}, {"name": "n", "parameters": {"binary_data": False}}],
        ),
        None,
    )
    assert mixed.outputs == {"y": True, "n": False}


def test_a_timeout_is_in_microseconds() -> None:
    assert CODEC.decode(body(parameters={"timeout": 250_000}), None).timeout == 0.25
    assert CODEC.decode(body(), None).timeout is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"inputs": [NaN]}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (body(inputs=[]), "'inputs' must be"),
        (body(inputs={"x": 1}), "'inputs' must be"),
        (body(inputs=[1]), "not an object"),
        (body(inputs=[{**X, "shape": 3}]), "'x'.*'shape' must be an array"),
        (body(inputs=[X, X]), "'x' is given twice"),
        (body(inputs=[{**X, "parameters": 1}]), "'parameters' of tensor 'x'"),
        (body(inputs=[{**X, "parameters": {"binary_data_size": -1}}]), "binary_data_size must"),
        (body(inputs=[{**X, "parameters": {"binary_data_size": 0}}]), "both data and"),
        (body(inputs=[binary_x()]), "binary_data_size is 8, but 0 bytes are left"),
        (body(id=5), "'id' must be a string"),
        (body(outputs="y"), "'outputs' must be"),
        (body(outputs=[{"name": "q"}]), "'q' is unknown.*'y', 'n'"),
        (body(parameters=[]), "'parameters' of the request"),
        (body(parameters={"timeout": "soon"}), "'timeout'"),
        (body(parameters={"timeout": 0}), "'timeout'"),
    ],
)
def test_what_is_wrong_is_named(content: bytes, message: str) -> None:
    with pytest.raises(MlctlError, match=message) as caught:
        CODEC.decode(content, None)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_the_header_length_must_fit_the_body() -> None:
    content = body()
    with pytest.raises(MlctlError, match="the body has"):
        CODEC.decode(content, len(content) + 1)
    with pytest.raises(MlctlError, match="3 bytes of binary data belong to no input"):
        CODEC.decode(content + b"abc", len(content))
