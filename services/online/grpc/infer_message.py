"""ModelInfer messages as bytes, decoded and encoded without protobuf objects where possible.

The fields of a request but its id and its raw tensors are parsed once and cached by their bytes.
The response's fields but its id and its raw tensors are encoded once for each shape of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from bundle.errors import MlctlError
from services.online.grpc.codec import GrpcCodec
from services.online.grpc.models import GrpcModel, GrpcModels
from services.protocol.messages import methods
from services.protocol.priority import Priority
from services.protocol.wire import Declared, InferRequest, decode_raw, encode_raw, invalid

_CACHED = 256
_CACHED_BYTES = 4096
_BYTES_FIELD = 2  # the wire type of strings, bytes and messages
_ID, _INPUTS, _RAW = 3, 5, 7
_FIELDS = range(1, 8)
_ID_TAG, _RAW_OUTPUT_TAG = b"\x1a", b"\x32"


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
        self._outputs: dict[tuple[Any, ...], bytes] = {}

    def decode(self, message: bytes, use: Callable[[GrpcModel], None]) -> InferRequest:
        """Return the request in a ModelInferRequest; call `use` with the model that it names.

        Raises MODEL_NOT_FOUND, and INVALID_INPUT with the tensor and the reason.
        """
        parts = _split(message)
        if parts is None:
            return self._decode_whole(message, use)[2]
        key, identity, raw = parts
        header = self._headers.get(key)
        if header is None:
            model, found, request = self._decode_whole(message, use)
            if raw and not request.keys and len(key) <= _CACHED_BYTES:
                declared = model.codec.declarations(found)
                if len(self._headers) >= _CACHED:
                    self._headers.clear()
                self._headers[key] = _Header(
                    model, declared, request.outputs, request.timeout, request.priority
                )
            return request
        if len(raw) != len(header.inputs):
            return self._decode_whole(message, use)[2]
        use(header.model)
        try:
            name = identity.decode()
        except UnicodeDecodeError:
            raise _not_a_request() from None
        inputs = {
            each.spec.name: decode_raw(each, data)
            for each, data in zip(header.inputs, raw, strict=True)
        }
        return InferRequest(name, inputs, header.outputs, header.timeout, header.priority)

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
        key = (model.host.name, *[(name, outputs[name].shape) for name in request.outputs])
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

    def _decode_whole(
        self, message: bytes, use: Callable[[GrpcModel], None]
    ) -> tuple[GrpcModel, Any, InferRequest]:
        try:
            found = self._request.FromString(message)
        except DecodeError:
            raise _not_a_request() from None
        model = self._models.find(found.model_name, found.model_version)
        use(model)
        return model, found, model.codec.decode(found)


def _split(message: bytes) -> tuple[bytes, bytes, list[bytes]] | None:
    """Return a request's other fields, its id and its raw tensors; None for an unusual message.

    Fields of protobuf are independent of each other's position, so equal other fields mean equal
    requests whatever id and tensors stand between them.
    """
    others: list[bytes] = []
    raw: list[bytes] = []
    identity = b""
    at, size = 0, len(message)
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
            raw.append(message[at:end])
        elif field == _ID:
            identity = message[at:end]
        else:
            others.append(message[start:end])
        at = end
    return b"".join(others), identity, raw


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
