"""Inputs, drawn at random or read from a file, and the requests made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.protocol.json_data import encode_data
from services.protocol.messages import methods
from services.protocol.wire import encode_raw, invalid
from services.runtime.golden import load_golden

Arrays = Mapping[str, np.ndarray]

# The number of different requests: enough that a cache of answers is not what is measured.
_VARIETY = 32
_IN = "in."


def random_rows(signature: Signature, rows: int, length: int) -> Iterator[Arrays]:
    """Yield different inputs of `rows` rows; other dynamic dimensions have the size `length`.

    Integers are 0 or 1, which every vocabulary and every mask allows. INVALID_INPUT if an input
    does not have `rows` rows.
    """
    generator = np.random.default_rng(0)
    for spec in signature.inputs:
        if not spec.shape or spec.shape[0] not in (DYNAMIC, rows):
            raise invalid(f"input {spec.name!r} has shape {list(spec.shape)}, not {rows} rows")
    for _ in range(_VARIETY):
        yield {spec.name: _draw(spec, rows, length, generator) for spec in signature.inputs}


def given_rows(signature: Signature, path: Path, rows: int) -> Iterator[Arrays]:
    """Yield the rows of a `.npz` file, `rows` at a time; golden files and files of plain names.

    INVALID_INPUT if an input is missing or does not match the signature.
    """
    inputs = all_rows(signature, path)
    count = min(len(array) for array in inputs.values())
    if count < rows:
        raise invalid(f"{path.name} has {count} rows, fewer than the {rows} of a request")
    for start in range(0, min(count - rows + 1, rows * _VARIETY), rows):
        part = {name: array[start : start + rows] for name, array in inputs.items()}
        for spec in signature.inputs:
            if problem := spec.mismatch(spec.dtype, part[spec.name].shape):
                raise invalid(f"{path.name}: {problem}")
        yield part


def all_rows(signature: Signature, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz` file for the inputs, without a check of their shapes."""
    arrays = _read(path)
    missing = [spec.name for spec in signature.inputs if spec.name not in arrays]
    if missing:
        raise invalid(f"{path.name} has no rows for the input {missing[0]!r}")
    return {spec.name: _cast(spec, arrays[spec.name]) for spec in signature.inputs}


def infer_body(
    signature: Signature, inputs: Arrays, *, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return a V2 request and its headers; the outputs are requested in the same encoding."""
    tail = b""
    tensors: list[dict[str, Any]] = []
    for spec in signature.inputs:
        array = inputs[spec.name]
        tensor: dict[str, Any] = {
            "name": spec.name,
            "datatype": spec.dtype.value,
            "shape": list(array.shape),
        }
        if binary:
            raw = encode_raw(spec.dtype, array)
            tail += raw
            tensor["parameters"] = {"binary_data_size": len(raw)}
        else:
            tensor["data"] = encode_data(spec, array)
        tensors.append(tensor)
    document: dict[str, object] = {"inputs": tensors}
    if binary:
        document["parameters"] = {"binary_data_output": True}
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    fields = {"Content-Type": "application/octet-stream" if binary else "application/json"}
    if binary:
        fields["Inference-Header-Content-Length"] = str(len(head))
    return head + tail, fields


def http_request(
    signature: Signature, inputs: Arrays, path: str, headers: Mapping[str, str], *, binary: bool
) -> bytes:
    """Return the bytes of a POST of `infer_body`."""
    body, fields = infer_body(signature, inputs, binary=binary)
    return post(path, body, {**fields, **headers})


def post(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a keep-alive POST request."""
    lines = [f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def grpc_request(signature: Signature, inputs: Arrays, model: str) -> bytes:
    """Return the serialized ModelInferRequest with `inputs` as raw contents."""
    message = methods()["ModelInfer"].request(model_name=model)
    for spec in signature.inputs:
        array = inputs[spec.name]
        message.inputs.add(name=spec.name, datatype=spec.dtype.value, shape=array.shape)
        message.raw_input_contents.append(encode_raw(spec.dtype, array))
    return bytes(message.SerializeToString())


def _draw(spec: TensorSpec, rows: int, length: int, generator: np.random.Generator) -> np.ndarray:
    inner = (length if size == DYNAMIC else size for size in spec.shape[1:])
    shape = (rows, *inner)
    match spec.dtype:
        case Datatype.BYTES:
            return np.full(shape, b"mlctl", dtype=object)
        case Datatype.BF16:
            floats = generator.standard_normal(shape, dtype=np.float32)
            return (floats.view(np.uint32) >> 16).astype(np.uint16)
        case Datatype.FP16 | Datatype.FP32 | Datatype.FP64:
            return generator.standard_normal(shape).astype(spec.dtype.numpy_name)
    return generator.integers(0, 2, shape).astype(spec.dtype.numpy_name)


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as stored:
            golden = any(key.startswith(_IN) for key in stored.files)
            arrays = {} if golden else {key: stored[key] for key in stored.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{path} is not a readable .npz file of arrays"
        ) from error
    return load_golden(path)[0] if golden else arrays


def _cast(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    if spec.dtype is Datatype.BYTES and array.dtype.kind in "US":
        encoded = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
        return encoded.astype(object)
    if array.dtype.name != spec.dtype.numpy_name:
        raise invalid(
            f"input {spec.name!r} is {array.dtype.name}, the model's is {spec.dtype.numpy_name}"
        )
    return array
