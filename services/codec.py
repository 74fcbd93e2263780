"""The V2 HTTP body: JSON, with tensors either in it or as binary data after it.

With the header Inference-Header-Content-Length the body is that many bytes of JSON and
then the tensors that give `binary_data_size`, in their order. An answer uses binary
data for the outputs that asked for it, and has the same header then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from bundle.tensors import Signature, TensorSpec
from services.jsondata import decode_data, encode_data
from services.wire import (
    Declared,
    InferRequest,
    check_outputs,
    declare,
    decode_raw,
    encode_raw,
    invalid,
)

_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer's body; `header_length` is the JSON's length if binary data follows it."""

    body: bytes
    header_length: int | None

    @property
    def content_type(self) -> str:
        return "application/json" if self.header_length is None else "application/octet-stream"


class V2Codec:
    """Decodes requests to one model and encodes its answers."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._head = {"model_name": name, "model_version": version}
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._outputs = {spec.name: spec for spec in signature.outputs}

    def decode(self, body: bytes, header_length: int | None) -> InferRequest:
        """The request in `body`; INVALID_INPUT names the tensor, the field and what is expected."""
        if header_length is not None and header_length > len(body):
            raise invalid(
                f"Inference-Header-Content-Length is {header_length}, "
                f"but the body has {len(body)} bytes"
            )
        cut = len(body) if header_length is None else header_length
        document = _parse(body[:cut])
        parameters = _parameters(document, "the request")
        return InferRequest(
            id=_text(document, "id"),
            inputs=self._decode_inputs(document, memoryview(body)[cut:]),
            outputs=self._requested(document, binary=parameters.get("binary_data_output") is True),
            timeout=_timeout(parameters),
        )

    def encode(self, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> Encoded:
        """The answer to `request`; INVALID_INPUT if an output cannot be sent the way it asked."""
        tensors, chunks = [], []
        for name, binary in request.outputs.items():
            spec, array = self._outputs[name], outputs[name]
            tensor: dict[str, Any] = {
                "name": name,
                "datatype": spec.dtype.value,
                "shape": list(array.shape),
            }
            if binary:
                chunks.append(encode_raw(spec.dtype, array))
                tensor["parameters"] = {"binary_data_size": len(chunks[-1])}
            else:
                tensor["data"] = encode_data(spec, array)
            tensors.append(tensor)
        identity = {"id": request.id} if request.id else {}
        head = _dump({**self._head, **identity, "outputs": tensors})
        return Encoded(b"".join([head, *chunks]), len(head) if chunks else None)

    def _decode_inputs(self, document: dict[str, Any], binary: memoryview) -> dict[str, np.ndarray]:
        tensors = document.get("inputs")
        if not isinstance(tensors, list) or not tensors:
            raise invalid("field 'inputs' must be an array of tensors")
        arrays: dict[str, np.ndarray] = {}
        offset = 0
        for tensor in tensors:
            declared = self._declare(tensor)
            if declared.spec.name in arrays:
                raise invalid(f"input {declared.spec.name!r} is given twice")
            size = _binary_size(tensor, declared.spec)
            if size is None:
                arrays[declared.spec.name] = decode_data(declared, tensor.get("data"))
                continue
            arrays[declared.spec.name] = _take(declared, tensor, binary[offset:], size)
            offset += size
        if offset != len(binary):
            raise invalid(f"{len(binary) - offset} bytes of binary data belong to no input")
        return arrays

    def _declare(self, tensor: object) -> Declared:
        if not isinstance(tensor, dict):
            raise invalid("field 'inputs': an element is not an object")
        shape = tensor.get("shape")
        if not isinstance(shape, list):
            raise invalid(f"tensor {tensor.get('name')!r}: field 'shape' must be an array")
        return declare(self._inputs, tensor.get("name"), tensor.get("datatype"), shape)

    def _requested(self, document: dict[str, Any], *, binary: bool) -> dict[str, bool]:
        wanted = document.get("outputs", [])
        if not isinstance(wanted, list) or not all(isinstance(item, dict) for item in wanted):
            raise invalid("field 'outputs' must be an array of objects")
        if not wanted:
            return dict.fromkeys(self._outputs, binary)
        check_outputs(self._outputs, [item.get("name") for item in wanted])
        return {
            item["name"]: _parameters(item, "an output").get("binary_data", binary) is True
            for item in wanted
        }


def _parse(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise invalid("the body is not valid JSON") from None
    if not isinstance(document, dict):
        raise invalid("the body is not a JSON object")
    return document


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field, "")
    if not isinstance(value, str):
        raise invalid(f"field {field!r} must be a string")
    return value


def _parameters(document: dict[str, Any], owner: str) -> dict[str, Any]:
    value = document.get("parameters", {})
    if not isinstance(value, dict):
        raise invalid(f"field 'parameters' of {owner} must be an object")
    return value


def _timeout(parameters: dict[str, Any]) -> float | None:
    """The request's `timeout` parameter, which Triton's clients send in microseconds."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise invalid("parameter 'timeout' must be a positive number of microseconds")
    return value / _MICROSECONDS


def _binary_size(tensor: dict[str, Any], spec: TensorSpec) -> int | None:
    size = _parameters(tensor, f"tensor {spec.name!r}").get("binary_data_size")
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise invalid(f"tensor {spec.name!r}: binary_data_size must be a number of bytes")
    return size


def _take(declared: Declared, tensor: dict[str, Any], rest: memoryview, size: int) -> np.ndarray:
    name = declared.spec.name
    if "data" in tensor:
        raise invalid(f"tensor {name!r} has both data and binary_data_size")
    if size > len(rest):
        raise invalid(
            f"tensor {name!r}: binary_data_size is {size}, but {len(rest)} bytes are left"
        )
    return decode_raw(declared, rest[:size])
