"""Inputs, drawn at random or read from a file, and the requests made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import GOLDEN_NAME
from mlctl.bundle.tensors import DYNAMIC, Datatype, MissingValues, Signature, TensorSpec
from mlctl.optimize.data.check import Pass
from mlctl.optimize.data.load import open_source
from mlctl.services.model.golden import load_golden
from mlctl.services.protocol.json_data import encode_data
from mlctl.services.protocol.messages import methods
from mlctl.services.protocol.wire import encode_raw, invalid

# The number of different requests: enough that a cache of answers is not what is measured.
_VARIETY = 32


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


def given_rows(signature: Signature, source: str | Path, rows: int) -> Iterator[Arrays]:
    """Yield the first rows of `source`, `rows` at a time; INVALID_INPUT if it has fewer."""
    inputs = all_rows(signature, source, rows * _VARIETY)
    count = min(len(array) for array in inputs.values())
    if count < rows:
        raise invalid(f"{source} has {count} rows, fewer than the {rows} of a request")
    for start in range(0, count - rows + 1, rows):
        yield {name: array[start : start + rows] for name, array in inputs.items()}


def all_rows(
    signature: Signature, source: str | Path, max_rows: int | None = None
) -> dict[str, np.ndarray]:
    """Return the inputs of golden rows, or of data as `mlctl optimize` reads it, without labels.

    INVALID_INPUT if an input is missing or does not match the signature.
    """
    if Path(source).name == GOLDEN_NAME:
        return {name: array[:max_rows] for name, array in load_golden(Path(source))[0].items()}
    missing = MissingValues(nullable=frozenset(spec.name for spec in signature.inputs))
    found = Pass(open_source(source, signature, missing), signature, missing)
    chunks = []
    for chunk in found.chunks():
        chunks.append(chunk.inputs)
        if max_rows is not None and found.rows + chunk.count >= max_rows:
            break
    if not chunks:
        raise invalid(f"{source} has no rows")
    names = chunks[0]
    return {name: np.concatenate([each[name] for each in chunks])[:max_rows] for name in names}


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
