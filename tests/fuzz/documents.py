"""Targets that are read from memory: the manifest, V2 requests as JSON, as binary, as protobuf."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mlctl.bundle.manifest import parse_manifest
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.messages import methods
from mlctl.services.protocol.wire import InferRequest
from tests.fuzz.target import Feed, FindingError, Target
from tests.support.manifests import manifest_document

_SIZE = 4  # bytes that tell where a binary request's JSON ends
_DOCUMENT = manifest_document()
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["../up", "/etc", "a\\b", "a%2e", "x" * 300, "FP32", "BYTES"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON document."""
    yield at
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(child, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """`value` with `new` in one place."""
    if not at:
        return new
    key, *rest = at
    changed = value.copy()
    changed[key] = replaced(value[key], tuple(rest), new)
    return changed


def altered(document: Any) -> st.SearchStrategy[Any]:
    """`document` with one or two of its values replaced by any JSON."""
    one = st.tuples(st.sampled_from(list(paths(document))), JSON)
    return one.map(lambda change: replaced(document, *change))


def _dumped(documents: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return documents.map(lambda document: json.dumps(document).encode())


@contextmanager
def _manifest() -> Iterator[Feed]:
    def feed(data: bytes) -> str:
        manifest = parse_manifest(data)
        again = parse_manifest(manifest.canonical())
        if again.digest != manifest.digest:
            raise FindingError("the canonical form has another digest")
        return f"{len(manifest.files)} files"

    yield feed


SIGNATURE = Signature(
    inputs=tuple(
        TensorSpec(name=name, dtype=dtype, shape=(-1, 4))
        for name, dtype in (("x", Datatype.FP32), ("n", Datatype.INT64), ("s", Datatype.BYTES))
    ),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1, 4)),),
)
V2_DOCUMENT = {
    "id": "one",
    "parameters": {"timeout": 1000, "priority": 1, "binary_data_output": True},
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.5, 2, 3, 4]},
        {"name": "n", "datatype": "INT64", "shape": [1, 4], "data": [[1, 2, 3, 4]]},
        {"name": "s", "datatype": "BYTES", "shape": [1, 4], "data": ["a", "b", "c", "d"]},
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": False, "classification": 2}}],
}
BINARY_DOCUMENT = {
    "inputs": [
        {
            "name": name,
            "datatype": datatype,
            "shape": [1, 4],
            "parameters": {"binary_data_size": size},
        }
        for name, datatype, size in (("x", "FP32", 16), ("n", "INT64", 32), ("s", "BYTES", 20))
    ]
}
BINARY = bytes(48) + b"\1\0\0\0a" * 4


def answer_of(request: InferRequest) -> str:
    """What a decoded request promises: arrays that have their shape."""
    for array in request.inputs.values():
        if array.size != int(np.prod(array.shape)):
            raise FindingError(f"an array of shape {array.shape} has {array.size} elements")
    return f"{sorted(request.inputs)} {len(request.outputs)}"


@contextmanager
def _v2_json() -> Iterator[Feed]:
    codec = V2Codec("m", "v", SIGNATURE)
    yield lambda data: answer_of(codec.decode(data, None))


@contextmanager
def _v2_binary() -> Iterator[Feed]:
    codec = V2Codec("m", "v", SIGNATURE)

    def feed(data: bytes) -> str:
        length = int.from_bytes(data[:_SIZE], "little", signed=True)
        return answer_of(codec.decode(data[_SIZE:], length))

    yield feed


def binary_request(head: bytes, tensors: bytes, wrong_by: int = 0) -> bytes:
    """An input of the target: the length of `head`, it, and the tensors' bytes."""
    return (len(head) + wrong_by).to_bytes(_SIZE, "little", signed=True) + head + tensors


_BINARIES = st.builds(
    binary_request,
    _dumped(altered(BINARY_DOCUMENT)),
    st.just(BINARY) | st.binary(max_size=70),
    st.sampled_from([0, 0, 0, 1, -1, -5, 1 << 20]),
)


@contextmanager
def _grpc_message() -> Iterator[Feed]:
    from google.protobuf.message import DecodeError

    request, codec = methods()["ModelInfer"].request, GrpcCodec("m", "v", SIGNATURE)

    def feed(data: bytes) -> str:
        try:
            message = request.FromString(data)
        except DecodeError:
            raise MlctlError(ErrorCode.INVALID_INPUT, "not a message") from None
        return answer_of(codec.decode(message))

    yield feed


@st.composite
def _messages(draw: st.DrawFn) -> bytes:
    message: Any = methods()["ModelInfer"].request(model_name="m")
    for spec in draw(st.lists(st.sampled_from(SIGNATURE.inputs), max_size=4)):
        shape = draw(st.lists(st.sampled_from([0, 1, 4, -1, 1 << 40, 1 << 62]), max_size=3))
        datatype = draw(st.sampled_from([spec.dtype.value, "FP64", "", "\ud7ff"]))
        tensor = message.inputs.add(name=spec.name, datatype=datatype, shape=shape)
        if draw(st.booleans()):
            tensor.contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=5)))
            tensor.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=3), max_size=4)))
        message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=33), max_size=1)))
    for name in draw(st.lists(st.sampled_from(["timeout", "priority", "sequence_id"]), max_size=2)):
        message.parameters[name].int64_param = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    found: bytes = message.SerializeToString()
    return found


_REQUEST_CODES = frozenset({ErrorCode.INVALID_INPUT, ErrorCode.PAYLOAD_TOO_LARGE})
DOCUMENTS = (
    Target(
        "manifest",
        _manifest,
        _dumped(altered(_DOCUMENT)),
        frozenset({ErrorCode.MANIFEST_INVALID, ErrorCode.MANIFEST_VERSION_UNKNOWN}),
    ),
    Target("v2-json", _v2_json, _dumped(altered(V2_DOCUMENT)), _REQUEST_CODES),
    Target("v2-binary", _v2_binary, _BINARIES, _REQUEST_CODES),
    Target("grpc-message", _grpc_message, _messages(), _REQUEST_CODES),
)
