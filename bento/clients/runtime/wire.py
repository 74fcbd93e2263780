"""The V2 protocol over HTTP: arrays to bodies and back, as binary data or as JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import InvalidInputError, ModelError, ServerError, error_of
from .specs import NUMPY, Array, Meta, Spec

LENGTH_HEADER = "inference-header-content-length"


def encode(
    specs: tuple[Spec, ...],
    arrays: Mapping[str, Array],
    parameters: dict[str, Any],
    *,
    binary: bool,
) -> tuple[bytes, dict[str, str]]:
    """The body of an infer request, and the headers that belong to it."""
    inputs, chunks = [], []
    for spec in specs:
        array = arrays[spec.name]
        tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype}
        tensor["shape"] = list(array.shape)
        if binary:
            chunks.append(to_bytes(spec, array))
            tensor["parameters"] = {"binary_data_size": len(chunks[-1])}
        else:
            tensor["data"] = _to_list(spec, array)
        inputs.append(tensor)
    document = {"parameters": {**parameters, "binary_data_output": binary}, "inputs": inputs}
    head = json.dumps(document, separators=(",", ":")).encode()
    if not binary:
        return head, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", LENGTH_HEADER: str(len(head))}
    return b"".join([head, *chunks]), headers


def decode(
    specs: tuple[Spec, ...], headers: Mapping[str, str], body: bytes
) -> tuple[dict[str, Array], Meta]:
    """The arrays of an answer and what it tells of itself; `ServerError` if it is none."""
    try:
        length = int(headers.get(LENGTH_HEADER, len(body)))
        document = json.loads(body[:length])
        tensors = {tensor["name"]: tensor for tensor in document["outputs"]}
        binary = _cut(document["outputs"], memoryview(body)[length:])
        arrays = {spec.name: _array(spec, tensors[spec.name], binary) for spec in specs}
        meta = Meta(
            str(document["model_name"]),
            str(document.get("model_version", "")),
            headers.get("x-request-id", ""),
            document.get("parameters", {}),
        )
    except (ValueError, LookupError, TypeError, struct.error, ModelError) as error:
        raise ServerError("the answer is not one of the protocol") from error
    return arrays, meta


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The error that an answer with another status than 200 tells."""
    try:
        document = json.loads(body)
        said = {key: str(document.get(key, "")) for key in ("error", "code", "hint")}
    except (ValueError, AttributeError):
        said = {"error": "", "code": "", "hint": ""}
    message = said["error"] or f"the server answered with status {status}"
    return error_of(message, said["code"], said["hint"], status, _seconds(headers))


def to_bytes(spec: Spec, array: Array) -> bytes:
    """Raw little-endian data; each element of BYTES after its length in four bytes."""
    if spec.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in array.flat)
    return array.astype(np.dtype(NUMPY[spec.datatype]).newbyteorder("<"), copy=False).tobytes()


def from_bytes(spec: Spec, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """The array in raw `data`; ValueError or struct.error if it is not of that shape."""
    if spec.datatype != "BYTES":
        found = np.frombuffer(data, np.dtype(NUMPY[spec.datatype]).newbyteorder("<"))
        return found.reshape(shape)
    values, start, whole = [], 0, bytes(data)
    while start < len(whole):
        (size,) = struct.unpack_from("<I", whole, start)
        values.append(whole[start + 4 : start + 4 + size])
        start += 4 + size
    texts = np.empty(len(values), dtype=object)
    texts[:] = values
    return texts.reshape(shape)


def _to_list(spec: Spec, array: Array) -> list[Any]:
    if spec.datatype == "BF16":
        raise _binary_only(spec, "is BF16, which JSON has no form of")
    flat: list[Any] = array.ravel().tolist()
    if spec.datatype == "BYTES":
        try:
            return [value.decode() for value in flat]
        except UnicodeDecodeError:
            raise _binary_only(spec, "holds a value that is not UTF-8") from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _binary_only(spec, "has a value that is not finite")
    return flat


def _binary_only(spec: Spec, reason: str) -> InvalidInputError:
    hint = "Send it as binary data: Client(..., binary=True)."
    return InvalidInputError(f"{spec.name!r} {reason}", code="invalid_input", hint=hint)


def _cut(tensors: list[dict[str, Any]], data: memoryview) -> dict[str, memoryview]:
    """The binary data of each tensor that has some, in the order of the tensors."""
    found, start = {}, 0
    for tensor in tensors:
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is not None:
            found[str(tensor["name"])] = data[start : start + size]
            start += size
    if start != len(data):
        raise ValueError("the binary data has another length")
    return found


def _array(spec: Spec, tensor: dict[str, Any], binary: Mapping[str, memoryview]) -> Array:
    shape = tuple(tensor["shape"])
    spec.check_shape(shape)
    if spec.name in binary:
        return from_bytes(spec, shape, binary[spec.name])
    if spec.datatype == "BYTES":
        texts = np.empty(len(tensor["data"]), dtype=object)
        texts[:] = [text.encode() for text in tensor["data"]]
        return texts.reshape(shape)
    return np.array(tensor["data"], dtype=NUMPY[spec.datatype]).reshape(shape)


def _seconds(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "")
    return float(text) if text.isdigit() else None
