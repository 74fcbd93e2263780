"""The V2 HTTP body: JSON, with tensors either in it or as binary data after it.

With the header Inference-Header-Content-Length the body is that many bytes of JSON and then the
tensors that give `binary_data_size`, in their order; with a length of zero it is the one tensor of
a model with one input. A response uses binary data for the outputs that requested it, and has the
same header then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import orjson

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.services.protocol.header import Header, Part, read_header
from mlctl.services.protocol.json_data import decode_data, decode_flat, dump_data
from mlctl.services.protocol.wire import (
    FINAL_RESPONSE,
    InferRequest,
    declare,
    decode_raw,
    encode_raw,
    invalid,
    make_tuple,
)

# Parsed JSON headers, and encoded heads of output tensors, are cached: so many of each, and headers
# of at most so many bytes. A header's id is no part of its key.
_CACHED = 256
_CACHED_BYTES = 4096
_CACHED_JSON_BYTES = 64 << 10
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')
_DATA_KEY = b'"data"'
_ID_KEY = b'"id"'
_ID_VALUE = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"')
# A header without its first id: what stands before the id and after it; all of it if it has none.
_HeaderKey = tuple[bytes, ...]


class V2Codec:
    """Decodes requests to one model and encodes its responses."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._model = {"model_name": name, "model_version": version}
        self._start = orjson.dumps(self._model)[:-1]
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._outputs = {spec.name: spec for spec in signature.outputs}
        self._headers: dict[_HeaderKey, Header] = {}
        self._tensor_heads: dict[tuple[str, tuple[int, ...], int | None], bytes] = {}

    def decode(self, body: bytes, header_length: int | None) -> InferRequest:
        """Return the request in `body`.

        INVALID_INPUT names the tensor, the field and what is expected.
        """
        if header_length is None:
            return self._decode_json(body)
        if header_length > len(body):
            raise invalid(
                f"Inference-Header-Content-Length is {header_length}, "
                f"but the body has {len(body)} bytes"
            )
        if header_length == 0:
            return _fill(self._bare(len(body)), "", body, 0)
        return self._decode_binary(body, header_length)

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, str | float] | None = None,
    ) -> tuple[bytes, int | None]:
        """Return the response's body, and the length of its JSON if binary data follows that.

        INVALID_INPUT if an output cannot be sent in the requested form.
        """
        tensors: list[bytes] = []
        chunks: list[bytes] = []
        key: tuple[str, tuple[int, ...], int | None]
        for name, binary in request.outputs.items():
            spec, array = self._outputs[name], outputs[name]
            if binary:
                chunk = encode_raw(spec.dtype, array)
                chunks.append(chunk)
                key = name, array.shape, len(chunk)
                tensors.append(self._tensor_heads.get(key) or self._tensor_head(spec, *key[1:]))
            else:
                key = name, array.shape, None
                start = self._tensor_heads.get(key) or self._tensor_head(spec, *key[1:])
                tensors.append(b"%b%b}" % (start, dump_data(spec, array)))
        identity = b',"id":' + orjson.dumps(request.id) if request.id else b""
        end = b',"parameters":' + orjson.dumps(parameters) if parameters else b""
        head = b'%b%b,"outputs":[%b]%b}' % (self._start, identity, b",".join(tensors), end)
        if not chunks:
            return head, None
        return b"".join((head, *chunks)), len(head)

    def encode_final(self, request: InferRequest) -> bytes:
        """Return the response after the last part of a streamed answer: no outputs, and a flag."""
        identity = {"id": request.id} if request.id else {}
        final = {"parameters": {FINAL_RESPONSE: True}, "outputs": []}
        return orjson.dumps({**self._model, **identity, **final})

    def _decode_binary(self, body: bytes, length: int) -> InferRequest:
        """Decode a request whose JSON has `length` bytes, which is parsed unless it is cached."""
        content = body[:length]
        key, name = _without_id(content)
        header = self._headers.get(key)
        if header is None or name is None:
            header = read_header(content, self._inputs, self._outputs)
            name = header.id
            if length <= _CACHED_BYTES and header.reusable and _is_only_id(content, name):
                self._cache(key, header)
        if len(header.parts) == 1:
            declared, size, _ = header.parts[0]
            if size is not None and size == declared.raw_size and length + size == len(body):
                array: np.ndarray = np.ndarray(declared.shape, declared.dtype, body, length)
                inputs = {declared.spec.name: array}
                head = header.outputs, header.timeout, header.priority, header.keys
                return make_tuple(InferRequest, (name, inputs, *head))
        return _fill(header, name, body, length)

    def _decode_json(self, body: bytes) -> InferRequest:
        """Decode a request without binary data.

        If its one tensor is a flat array, the text around that is parsed unless it is cached.
        """
        found = _DATA.search(body) if len(body) <= _CACHED_JSON_BYTES else None
        if found is None:
            header = read_header(body, self._inputs, self._outputs)
            return _fill(header, header.id, body, len(body))
        start = found.end() - 1
        end = body.find(b"]", start) + 1
        before, name = _without_id(body[:start])
        rest = body[end:]
        key = *before, b"[]", rest
        cached = self._headers.get(key)
        if cached is not None and name is not None:
            declared = cached.parts[0].declared
            array = decode_flat(declared, body[start:end])
            if array is not None:
                inputs = {declared.spec.name: array}
                head = cached.outputs, cached.timeout, cached.priority, cached.keys
                return make_tuple(InferRequest, (name, inputs, *head))
        header = read_header(body, self._inputs, self._outputs)
        if start + len(rest) <= _CACHED_BYTES and _is_flat(header, body[start:end]):
            only = body.count(_DATA_KEY) == 1 and body.find(_ID_KEY) < start
            if only and _is_only_id(body, header.id):
                self._cache(key, header._replace(parts=(header.parts[0]._replace(data=None),)))
        return _fill(header, header.id, body, len(body))

    def _cache(self, key: _HeaderKey, header: Header) -> None:
        if len(self._headers) >= _CACHED:
            self._headers.clear()
        self._headers[key] = header

    def _tensor_head(self, spec: TensorSpec, shape: tuple[int, ...], size: int | None) -> bytes:
        """Return the JSON of an output of `size` binary bytes, or its start up to its data."""
        tensor: dict[str, object] = {
            "name": spec.name,
            "datatype": spec.dtype.value,
            "shape": shape,
        }
        if size is not None:
            tensor["parameters"] = {"binary_data_size": size}
            head = orjson.dumps(tensor)
        else:
            head = orjson.dumps(tensor)[:-1] + b',"data":'
        if len(self._tensor_heads) >= _CACHED:
            self._tensor_heads.clear()
        self._tensor_heads[spec.name, shape, size] = head
        return head

    def _bare(self, size: int) -> Header:
        """Return the header of a body that is one tensor: its shape follows from its size."""
        (spec, *others) = self._inputs.values()
        itemsize = spec.dtype.itemsize
        dynamic = [axis for axis, length in enumerate(spec.shape) if length == DYNAMIC]
        if others or itemsize is None or not is_sized_by_bytes(spec.dtype, spec.shape):
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


def is_sized_by_bytes(dtype: Datatype, shape: Sequence[int]) -> bool:
    """Return whether the number of bytes gives the shape of a tensor of `shape` (-1: dynamic)."""
    return dtype.itemsize is not None and list(shape).count(DYNAMIC) <= 1


def _without_id(content: bytes) -> tuple[_HeaderKey, str | None]:
    """Return JSON without its first `"id"`, and the value of that; None if it is no text.

    A value without quotes and escapes cannot change what the rest of the text means, so a header
    that is cached by the rest, where that has only one `"id"`, is right for every value.
    """
    parts = _ID_VALUE.split(content, 1)
    if len(parts) == 1:
        return (content,), ""
    before, value, after = parts
    try:
        return (before, after), value.decode()
    except UnicodeDecodeError:
        return (before, after), None


def _is_flat(header: Header, array: bytes) -> bool:
    """Whether `array` is the whole data of a request's only tensor, and all of it is numbers."""
    numbers = array.count(b"[") == 1 and array.endswith(b"]") and b'"' not in array
    return numbers and len(header.parts) == 1 and not header.keys


def _is_only_id(content: bytes, name: str) -> bool:
    """Whether a parsed header has no id at all, or `name` at the only place that looks like one."""
    count = content.count(_ID_KEY)
    if b"\\" in content or count > 1:
        return False
    found = _ID_VALUE.search(content)
    return not name if found is None else found[1] == name.encode() and bool(name)


def _fill(header: Header, request_id: str, body: bytes, offset: int) -> InferRequest:
    """Return the request `request_id` of `header`, with its binary data from `offset` on."""
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
        inputs[name] = decode_raw(part.declared, body, offset, part.size)
        offset = end
    if offset != len(body):
        raise invalid(f"{len(body) - offset} bytes of binary data belong to no input")
    return InferRequest(
        request_id, inputs, header.outputs, header.timeout, header.priority, header.keys
    )
