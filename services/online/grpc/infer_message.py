"""ModelInfer messages as bytes, decoded and encoded without protobuf objects where possible.

The fields of a request but its id and its raw tensors are parsed once and cached by their bytes.
The response's fields but its id and its raw tensors are encoded once for each shape of outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from bundle.errors import MlctlError
from services.online.grpc.codec import GrpcCodec
from services.online.grpc.http2.messages import PREFIX_BYTES
from services.online.grpc.models import GrpcModel, GrpcModels
from services.protocol.messages import methods
from services.protocol.priority import Priority
from services.protocol.wire import (
    Declared,
    InferRequest,
    decode_raw,
    encode_raw,
    invalid,
    make_tuple,
)

_CACHED = 256
_CACHED_BYTES = 4096
_BYTES_FIELD = 2  # the wire type of strings, bytes and messages
_ID, _INPUTS, _RAW = 3, 5, 7
_FIELDS = range(1, 8)
_ID_TAG, _RAW_OUTPUT_TAG = b"\x1a", b"\x32"


# Where a field's content begins and ends in a message.
_Span = tuple[int, int]


class ModelCall(Protocol):
    """A call, which counts for its model."""

    model: GrpcModel


class _Header(NamedTuple):
    """A request without its id and its raw tensors; `inputs` are in the order of the tensors."""

    model: GrpcModel
    inputs: tuple[Declared, ...]
    outputs: Mapping[str, bool]
    timeout: float | None
    priority: Priority


class InferMessages:
    """Decodes the ModelInfer requests of a server and encodes the responses."""

    def __init__(self, models: GrpcModels) -> None:
        self._models = models
        self._request = methods()["ModelInfer"].request
        self._response = methods()["ModelInfer"].response
        self._headers: dict[bytes, _Header] = {}
        self._layouts: dict[int, _Layout] = {}
        self._outputs: dict[tuple[Any, ...], bytes] = {}

    def decode(self, message: bytes, call: ModelCall) -> InferRequest:
        """Return the request in a ModelInferRequest, which follows its prefix in `message`.

        Sets the model of `call`. Raises MODEL_NOT_FOUND, and INVALID_INPUT with the tensor and the
        reason.
        """
        layout = self._layouts.get(len(message))
        if layout is not None and layout.fits(message):
            return _fill(layout.header, message, layout.identity, layout.raw, call)
        spans = _split(message)
        if spans is None:
            return self._decode_whole(message, call)[0]
        others, identity, raw = spans
        key = b"".join([message[start:end] for start, end in others])
        header = self._headers.get(key)
        if header is None:
            request, found = self._decode_whole(message, call)
            if raw and not request.keys and len(key) <= _CACHED_BYTES:
                declared = call.model.codec.declarations(found)
                if len(self._headers) >= _CACHED:
                    self._headers.clear()
                self._headers[key] = _Header(
                    call.model, declared, request.outputs, request.timeout, request.priority
                )
            return request
        if len(raw) != len(header.inputs):
            return self._decode_whole(message, call)[0]
        if len(self._layouts) >= _CACHED:
            self._layouts.clear()
        self._layouts[len(message)] = _layout(message, identity, raw, header)
        return _fill(header, message, identity, raw, call)

    def encode(
        self,
        model: GrpcModel,
        request: InferRequest,
        outputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, str | float] | None = None,
    ) -> bytes:
        """Return the ModelInferResponse to `request`, serialized."""
        codec = model.codec
        if parameters:
            whole = codec.encode(self._response, request, outputs, parameters)
            serialized: bytes = whole.SerializeToString()
            return serialized
        key = (model.served.name, *[(name, outputs[name].shape) for name in request.outputs])
        described = self._outputs.get(key)
        if described is None:
            described = self._describe(codec, request, outputs)
            if len(self._outputs) >= _CACHED:
                self._outputs.clear()
            self._outputs[key] = described
        parts = [described]
        if request.id:
            identity = request.id.encode()
            parts += (_ID_TAG, _varint(len(identity)), identity)
        for name in request.outputs:
            data = encode_raw(codec.outputs[name].dtype, outputs[name])
            parts += (_RAW_OUTPUT_TAG, _varint(len(data)), data)
        return b"".join(parts)

    def _describe(
        self, codec: GrpcCodec, request: InferRequest, outputs: Mapping[str, np.ndarray]
    ) -> bytes:
        message = codec.encode(self._response, request._replace(id=""), outputs)
        message.ClearField("raw_output_contents")
        serialized: bytes = message.SerializeToString()
        return serialized

    def _decode_whole(self, message: bytes, call: ModelCall) -> tuple[InferRequest, Any]:
        try:
            found = self._request.FromString(message[PREFIX_BYTES:])
        except DecodeError:
            raise _not_a_request() from None
        call.model = self._models.find(found.model_name, found.model_version)
        return call.model.codec.decode(found), found


class _Layout(NamedTuple):
    """Where a message of one length has its id and tensors, and the bytes `fixed` between them.

    A message of that length with those bytes has the same fields in the same places.
    """

    fixed: tuple[tuple[slice, bytes], ...]
    identity: _Span
    raw: Sequence[_Span]
    header: _Header

    def fits(self, message: bytes) -> bool:
        """Whether a message of the layout's length has it."""
        for span, content in self.fixed:  # noqa: SIM110 - a generator costs more than the rest
            if message[span] != content:
                return False
        return True


def _layout(message: bytes, identity: _Span, raw: Sequence[_Span], header: _Header) -> _Layout:
    at, fixed = PREFIX_BYTES, []
    for start, end in (*sorted((identity, *raw)), (len(message), len(message))):
        if at < start:
            fixed.append((slice(at, start), message[at:start]))
        at = end
    return _Layout(tuple(fixed), identity, raw, header)


def _fill(
    header: _Header, message: bytes, identity: _Span, raw: Sequence[_Span], call: ModelCall
) -> InferRequest:
    """Return the request of `header` with the id and the tensors at these places."""
    call.model = header.model
    start, end = identity
    try:
        name = message[start:end].decode() if start < end else ""
    except UnicodeDecodeError:
        raise _not_a_request() from None
    inputs = {}
    for declared, (start, end) in zip(header.inputs, raw, strict=True):
        inputs[declared.spec.name] = decode_raw(declared, message, start, end - start)
    head = header.outputs, header.timeout, header.priority
    return make_tuple(InferRequest, (name, inputs, *head, ()))


def _split(message: bytes) -> tuple[list[_Span], _Span, list[_Span]] | None:
    """Return where a request has its other fields, its id and its raw tensors; None if unusual.

    Fields of protobuf are independent of each other's position, so equal other fields mean equal
    requests whatever id and tensors stand between them.
    """
    others: list[_Span] = []
    raw: list[_Span] = []
    at, size = PREFIX_BYTES, len(message)
    identity = at, at
    while at < size:
        tag = message[at]
        start, field = at, tag >> 3
        if tag & 7 != _BYTES_FIELD or field not in _FIELDS or at + 1 >= size:
            return None
        length = message[at + 1]
        at += 2
        if length >= 0x80:
            length &= 0x7F
            for shift in (7, 14, 21, 28):
                if at >= size:
                    return None
                byte = message[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            else:
                return None
        end = at + length
        if end > size:
            return None
        if field == _RAW:
            raw.append((at, end))
        elif field == _ID:
            identity = at, end
        else:
            others.append((start, end))
        at = end
    return others, identity, raw


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL = [bytes([value]) for value in range(0x80)]


def _not_a_request() -> MlctlError:
    return invalid("the message is not a ModelInferRequest")
