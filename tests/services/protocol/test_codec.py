from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.wire import InferRequest

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


def binary_x(size: Any = 8) -> dict[str, Any]:
    return {**{k: v for k, v in X.items() if k != "data"}, "parameters": {"binary_data_size": size}}


def test_codec__json_tensors__are_read_and_written() -> None:
    request = CODEC.decode(body(id="7"), None)
    assert request.inputs["x"].tolist() == [[1, 2]]
    assert request.inputs["w"].tolist() == [b"a"]
    found, header_length = CODEC.encode(request, ANSWER)
    assert header_length is None
    assert json.loads(found) == {
        "model_name": "m",
        "model_version": "d" * 64,
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
            {"name": "n", "datatype": "INT64", "shape": [1], "data": [7]},
        ],
    }


def test_codec__binary_beside_json__is_read_and_written() -> None:
    head = body(
        inputs=[binary_x(), W],
        outputs=[{"name": "n"}, {"name": "y", "parameters": {"binary_data": True}}],
    )
    request = CODEC.decode(head + np.array([3, 4], "<f4").tobytes(), len(head))
    assert request.inputs["x"].tolist() == [[3, 4]]
    found, header_length = CODEC.encode(request, ANSWER)
    assert header_length is not None
    document = json.loads(found[:header_length])
    assert [output["name"] for output in document["outputs"]] == ["n", "y"]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 8}
    assert found[header_length:] == np.array([1, 2], "<f4").tobytes()


def test_decode__binary_data_output__is_the_default_of_each_output() -> None:
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


def test_decode__same_header_again__is_read_the_same() -> None:
    codec = V2Codec("m", "v", SIGNATURE)
    texts = {"name": "w", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
    head = body(inputs=[binary_x(), texts], parameters={"binary_data_output": True, "timeout": 9})
    first = codec.decode(head + bytes(8) + b"\1\0\0\0a", len(head))
    again = codec.decode(head + np.array([5, 6], "<f4").tobytes() + b"\1\0\0\0b", len(head))
    assert again.inputs["x"].tolist() == [[5, 6]]
    assert again.inputs["w"].tolist() == [b"b"]
    assert (again.outputs, again.timeout) == (first.outputs, first.timeout)
    for short in (b"", bytes(8), bytes(14)):
        with pytest.raises(MlctlError, match="bytes"):
            codec.decode(head + short, len(head))


def test_header_cache__many_headers__stays_bounded_and_holds_no_id() -> None:
    codec = V2Codec("m", "v", SIGNATURE)
    texts = {"name": "w", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}

    def send(**fields: Any) -> None:
        head = body(inputs=[binary_x(), texts], **fields)
        codec.decode(head + bytes(8) + b"\1\0\0\0a", len(head))

    for index in range(600):
        send(parameters={"timeout": index + 1})
        send(id=f"request {index}")
    send(parameters={"note": "x" * 5000})
    assert 0 < len(codec._headers) <= 256
    assert all(len(head) <= 4096 and b"request" not in head for head in codec._headers)


ONE = TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2))
JSON_LIKE = [
    b'{"id":"a","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
    b'{"id":"b","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[3,4]}]}',
    b'{"id":"","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[3,4]}]}',
    b'{"id":5,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[3,4]}]}',
    b'{"id":"\xff","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[3,4]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[[5],[6]]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[[5,6]]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[5],[6]]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[5,]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":["5","6"]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":["5]"]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1e99,0]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[true,0]}]}',
    b'{"id":"c","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2,3]}]}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}],"id":"a"}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}],"id":"b"}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
    b'{"parameters":{"id":"p"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
    b'{"parameters":{"id":"q"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
    b'{"parameters":{"data":[1,2]},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[7,8]}]}',
    b'{"parameters":{"data":[5,6]},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[7,8]}]}',
    b'{"\\u0069d":"z","parameters":{"id":"z"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[7,8]}]}',
    b'{"\\u0069d":"z","parameters":{"id":"y"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[7,8]}]}',
    b'{"id":"a","id":"b","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
    b'{"id":"a","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2],"data":[3,4]}]}',
]


def result(codec: V2Codec, content: bytes, length: int | None) -> object:
    try:
        request = codec.decode(content, length)
    except MlctlError as error:
        return error.code, error.message
    inputs = {name: array.tolist() for name, array in request.inputs.items()}
    return request._replace(inputs=inputs)


def test_header_cache__any_order_of_requests__decodes_as_without_a_cache() -> None:
    binary = b'"parameters":{"binary_data_size":8}'
    requests: list[tuple[bytes, int | None]] = [(content, None) for content in JSON_LIKE]
    for content in JSON_LIKE:
        head = re.sub(rb'"data":.*?\]+(?=\})', binary, content)
        requests.append((head + np.array([1, 2], "<f4").tobytes(), len(head)))
    signature = Signature(inputs=(ONE,), outputs=(ONE,))
    expected = [result(V2Codec("m", "v", signature), *request) for request in requests]
    for first in range(len(requests)):
        codec = V2Codec("m", "v", signature)
        order = [*range(first, len(requests)), *range(first)] * 2
        assert [result(codec, *requests[number]) for number in order] == [
            expected[number] for number in order
        ]


def test_decode__one_binary_tensor_with_keys__has_both_and_the_exact_size() -> None:
    codec = V2Codec(
        "m", "d" * 64, Signature(inputs=SIGNATURE.inputs[:1], outputs=SIGNATURE.outputs)
    )
    head = body(id="7", inputs=[binary_x()], parameters={"entity_key": "u1"})
    request = codec.decode(head + np.array([3, 4], np.float32).tobytes(), len(head))
    assert (request.id, request.keys, request.inputs["x"].tolist()) == ("7", ("u1",), [[3, 4]])
    for size, message in (
        (7, "7 bytes are left"),
        (9, "1 bytes of binary data belong to no input"),
    ):
        with pytest.raises(MlctlError, match=message):
            codec.decode(head + bytes(size), len(head))


def test_codec__half_floats_in_json__are_numbers() -> None:
    spec = TensorSpec(name="h", dtype=Datatype.FP16, shape=(-1,))
    codec = V2Codec("m", "v", Signature(inputs=(spec,), outputs=(spec,)))
    tensor = {"name": "h", "datatype": "FP16", "shape": [3], "data": [0.1, -2, 65504]}
    request = codec.decode(json.dumps({"inputs": [tensor]}).encode(), None)
    assert request.inputs["h"].dtype == np.float16
    answer = json.loads(codec.encode(request, request.inputs)[0])
    assert np.array(answer["outputs"][0]["data"], np.float16).tolist() == [
        np.float16(0.1), -2, 65504,
    ]  # fmt: skip


def test_codec__bfloat16__is_two_bytes() -> None:
    spec = TensorSpec(name="b", dtype=Datatype.BF16, shape=(-1,))
    codec = V2Codec("m", "v", Signature(inputs=(spec,), outputs=(spec,)))
    tensor = {"name": "b", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    request = codec.decode(head + b"\x80\x3f\0\xc0", len(head))
    assert request.inputs["b"].tolist() == [0x3F80, 0xC000]  # 1.0 and -2.0
    found, header_length = codec.encode(request, request.inputs)
    assert found[header_length:] == b"\x80\x3f\0\xc0"
    with pytest.raises(MlctlError, match="BF16: request it as binary data"):
        codec.encode(InferRequest("", {}, {"b": False}), request.inputs)


def test_decode__header_length_zero__is_one_raw_tensor() -> None:
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2))
    codec = V2Codec("m", "v", Signature(inputs=(spec,), outputs=(spec,)))
    request = codec.decode(np.arange(6, dtype="<f4").tobytes(), 0)
    assert request.inputs["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert request.outputs == {"x": True}
    with pytest.raises(MlctlError, match="9 bytes of data, expected 8"):
        codec.decode(bytes(9), 0)
    with pytest.raises(MlctlError, match="one input"):
        CODEC.decode(bytes(8), 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": None},
        {"outputs": None},
        {"parameters": None},
        {"parameters": dict.fromkeys(("timeout", "priority", "binary_data_output", "sequence_id"))},
        {"parameters": {"entity_key": None, "entity_keys": None}},
        {"outputs": [{"name": name, "parameters": None} for name in ("y", "n")]},
        {"outputs": [{"name": name, "parameters": {"binary_data": None}} for name in ("y", "n")]},
        {"inputs": [{**X, "parameters": None}, {**W, "parameters": {"binary_data_size": None}}]},
    ],
)
def test_decode__optional_field_is_null__is_as_if_absent(fields: dict[str, Any]) -> None:
    codec = V2Codec("m", "v", SIGNATURE)
    for _ in range(2):  # the second time from the cache
        request, plain = codec.decode(body(**fields), None), codec.decode(body(), None)
        assert {name: array.tolist() for name, array in request.inputs.items()} == {
            "x": [[1, 2]],
            "w": [b"a"],
        }
        assert request[2:] == plain[2:]
        assert request.id == ""


def test_decode__data_is_null_beside_its_binary_size__is_binary() -> None:
    head = body(inputs=[{**binary_x(), "data": None}, W])
    request = CODEC.decode(head + np.array([3, 4], "<f4").tobytes(), len(head))
    assert request.inputs["x"].tolist() == [[3, 4]]


@pytest.mark.parametrize("data", [["a", "b"], [["a"], ["b"]]])
def test_decode__column_of_shape_n_1__is_a_column(data: list[Any]) -> None:
    request = CODEC.decode(body(inputs=[X, {**W, "shape": [2, 1], "data": data}]), None)
    assert request.inputs["w"].tolist() == [b"a", b"b"]


def test_decode__timeout__is_in_microseconds() -> None:
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
        (body(inputs=[binary_x(True)]), "binary_data_size must"),
        (body(inputs=[{**X, "data": None}]), "'x' has neither"),
        (body(inputs=[{**X, "data": 1}]), "'x': field 'data' must be an array"),
        (body(inputs=[{"name": "w", "datatype": "BYTES", "shape": [1]}]), "'w' has neither"),
        (body(inputs=[{**X, "parameters": {"shared_memory_region": "r"}}]), "'x'.*not served"),
        (body(outputs=[{"name": "y", "parameters": {"classification": 3}}]), "'y'.*not served"),
        (body(outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), "true or false"),
        (body(parameters={"sequence_id": 7}), "the request: parameter 'sequence_id'"),
        (body(parameters={"binary_data_output": "yes"}), "'binary_data_output' must be true or"),
        (body(id=5), "'id' must be a string"),
        (body(outputs="y"), "'outputs' must be"),
        (body(outputs=[{"name": "q"}]), "'q' is unknown.*'y', 'n'"),
        (body(parameters=[]), "'parameters' of the request"),
        (body(parameters={"timeout": "soon"}), "'timeout'"),
        (body(parameters={"timeout": 0}), "'timeout'"),
    ],
)
def test_decode__invalid_body__is_rejected_with_the_reason(content: bytes, message: str) -> None:
    with pytest.raises(MlctlError, match=message) as caught:
        CODEC.decode(content, None)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_decode__header_length_does_not_fit__is_rejected() -> None:
    content = body()
    with pytest.raises(MlctlError, match="the body has"):
        CODEC.decode(content, len(content) + 1)
    with pytest.raises(MlctlError, match="3 bytes of binary data belong to no input"):
        CODEC.decode(content + b"abc", len(content))
