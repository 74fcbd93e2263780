"""The V2 HTTP body: JSON, with tensors either in it or as binary data after it.

With the header Inference-Header-Content-Length the body is that many bytes of JSON and
then the tensors that give `binary_data_size`, in their order; with a length of zero it is
the one tensor of a model that has one. An answer uses binary data for the outputs that
asked for it, and has the same header then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from bundle.tensors import DYNAMIC, Signature
from services.protocol.header import Header, Part, read_header
from services.protocol.json_data import decode_data, encode_data
from services.protocol.wire import (
    FINAL_RESPONSE,
    InferRequest,
    declare,
    decode_raw,
    encode_raw,
    invalid,
)

# A client sends the same header again and again, so what it means is kept: for at most this
# many headers of at most this many bytes.
_KEPT_HEADERS = 256
_KEPT_BYTES = 4096


class Encoded(NamedTuple):
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
        self._datatypes = {spec.name: spec.dtype.value for spec in signature.outputs}
        self._kept: dict[bytes, Header] = {}

    def decode(self, body: bytes, header_length: int | None) -> InferRequest:
        """The request in `body`; INVALID_INPUT names the tensor, the field and what is expected."""
        if header_length is None:
            return _fill(read_header(body, self._inputs, self._outputs), body, len(body))
        if header_length > len(body):
            raise invalid(
                f"Inference-Header-Content-Length is {header_length}, "
                f"but the body has {len(body)} bytes"
            )
        if header_length == 0:
            return _fill(self._bare(len(body)), body, 0)
        content = body[:header_length]
        header = self._kept.get(content)
        return _fill(header or self._read(content), body, header_length)

    def cached_header(self, content: bytes) -> Header | None:
        """What a header means that came before and may well come again; None of any other."""
        return self._kept.get(content)

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, str | float] | None = None,
    ) -> Encoded:
        """The answer to `request`; INVALID_INPUT if an output cannot be sent the way it asked."""
        tensors, chunks = [], []
        for name, binary in request.outputs.items():
            spec, array = self._outputs[name], outputs[name]
            tensor: dict[str, Any] = {
                "name": name,
                "datatype": self._datatypes[name],
                "shape": array.shape,
            }
            if binary:
                chunk = encode_raw(spec.dtype, array)
                chunks.append(chunk)
                tensor["parameters"] = {"binary_data_size": len(chunk)}
            else:
                tensor["data"] = encode_data(spec, array)
            tensors.append(tensor)
        identity = {"id": request.id} if request.id else {}
        document: dict[str, Any] = {**self._head, **identity, "outputs": tensors}
        if parameters:
            document["parameters"] = parameters
        head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        return Encoded(b"".join([head, *chunks]), len(head)) if chunks else Encoded(head, None)

    def encode_final(self, request: InferRequest) -> bytes:
        """The response after the last piece of an answer: no outputs, and the flag that says so."""
        identity = {"id": request.id} if request.id else {}
        final = {"parameters": {FINAL_RESPONSE: True}, "outputs": []}
        return orjson.dumps({**self._head, **identity, **final})

    def _read(self, content: bytes) -> Header:
        header = read_header(content, self._inputs, self._outputs)
        if header.cacheable and len(content) <= _KEPT_BYTES:
            if len(self._kept) >= _KEPT_HEADERS:
                self._kept.clear()
            self._kept[content] = header
        return header

    def _bare(self, size: int) -> Header:
        """The header of a body that is one tensor: its shape follows from its size."""
        (spec, *others) = self._inputs.values()
        itemsize = spec.dtype.itemsize
        dynamic = [axis for axis, length in enumerate(spec.shape) if length == DYNAMIC]
        if others or itemsize is None or len(dynamic) > 1:
            raise invalid(
                "Inference-Header-Content-Length is 0: only a model with one input, which has "
                "one dynamic dimension and is not BYTES, takes a tensor without a header"
            )
        shape = list(spec.shape)
        if dynamic:
            fixed = itemsize * math.prod(length for length in shape if length != DYNAMIC)
            shape[dynamic[0]] = size // fixed if fixed else 0
        declared = declare(self._inputs, spec.name, spec.dtype.value, shape)
        return Header("", (Part(declared, size),), dict.fromkeys(self._outputs, True))


def _fill(header: Header, body: bytes, offset: int) -> InferRequest:
    """The request of `header`, with the binary data that is in `body` from `offset` on."""
    view = memoryview(body)
    inputs: dict[str, np.ndarray] = {}
    for part in header.parts:
        name = part.declared.spec.name
        if part.size is None:
            inputs[name] = decode_data(part.declared, part.data)
            continue
        end = offset + part.size
        if end > len(body):
            raise invalid(
                f"tensor {name!r}: binary_data_size is {part.size}, "
                f"but {len(body) - offset} bytes are left",
                "Binary data follows the JSON, whose length Inference-Header-Content-Length gives.",
            )
        inputs[name] = decode_raw(part.declared, view[offset:end])
        offset = end
    if offset != len(body):
        raise invalid(f"{len(body) - offset} bytes of binary data belong to no input")
    return InferRequest(
        header.id, inputs, header.outputs, header.timeout, header.priority, header.keys
    )
