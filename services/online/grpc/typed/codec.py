"""Typed messages to and from arrays."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature
from mlctl.services.online.grpc.codec import from_values
from mlctl.services.online.grpc.typed.descriptors import make_messages
from mlctl.services.online.grpc.typed.layout import DIGEST, Field, TypedLayout
from mlctl.services.protocol.wire import InferRequest, declare, decode_raw, encode_raw, invalid


class TypedCodec:
    """Decodes the typed requests to one model and encodes its answers."""

    def __init__(self, layout: TypedLayout, digest: str, signature: Signature) -> None:
        self._layout = layout
        self._digest = digest
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._outputs = dict.fromkeys((spec.name for spec in signature.outputs), True)
        self._messages = make_messages(layout)

    @property
    def response(self) -> type[Any]:
        """The class of the messages that `encode` makes."""
        return self._messages.raw_response

    def decode(self, data: bytes) -> InferRequest:
        """Return the request in a message; INVALID_INPUT names the tensor and the reason.

        A tensor without values and shape is absent; the model decides whether it may be.
        """
        message = self._parse(data)
        inputs: dict[str, np.ndarray] = {}
        for field in self._layout.request:
            array = self._array(field, message)
            if array is not None:
                inputs[field.tensor.name] = array
        return InferRequest("", inputs, self._outputs)

    def encode(self, outputs: Mapping[str, np.ndarray]) -> Any:
        """Return the message of an answer."""
        message = self.response(**{DIGEST: self._digest})
        for field in self._layout.response:
            array = outputs[field.tensor.name]
            _put(message, field, array)
            if field.shape:
                getattr(message, field.shape).extend(array.shape)
        return message

    def _parse(self, data: bytes) -> Any:
        kinds = self._messages
        try:
            message = kinds.raw_request.FromString(data)
            message.DiscardUnknownFields()
            if message.ByteSize() != len(data):
                # Values one by one or in pieces, which a caller may send, too; or fields of a
                # later version. To ask for what is unknown would make an object of each.
                plain = kinds.request.FromString(data)
                plain.DiscardUnknownFields()
                message = kinds.raw_request.FromString(plain.SerializeToString())
        except DecodeError:
            name = f"{self._layout.package}.Request"
            raise invalid(f"the message is not a {name}") from None
        return message

    def _array(self, field: Field, message: Any) -> np.ndarray | None:
        tensor, values = field.tensor, getattr(message, field.name)
        count = len(values) // (tensor.dtype.itemsize or 1) if field.is_raw else len(values)
        sent_shape = getattr(message, field.shape) if field.shape else ()
        if not values and not sent_shape and tensor.elements != 0:
            return None
        shape = sent_shape or _shape(field, count)
        declared = declare(self._inputs, tensor.name, tensor.dtype.value, shape)
        if field.is_raw:
            return decode_raw(declared, values)
        return from_values(declared, values, f"field {field.name}")


def _shape(field: Field, count: int) -> tuple[int, ...]:
    """Return the shape of `count` values for which the client gave none."""
    wanted = field.tensor.shape
    known = prod(size for size in wanted if size != DYNAMIC)
    dynamic = wanted.count(DYNAMIC)
    if dynamic > 1 or (dynamic == 1 and (known == 0 or count % known)):
        raise invalid(
            f"tensor {field.tensor.name!r}: {count} values do not give the shape, "
            f"which is {list(wanted)}",
            f"Send it in {field.shape}." if dynamic > 1 or known == 0 else None,
        )
    return tuple(count // known if size == DYNAMIC else size for size in wanted)


def _put(message: Any, field: Field, array: np.ndarray) -> None:
    dtype = field.tensor.dtype
    if field.is_raw:
        setattr(message, field.name, encode_raw(dtype, array))
    else:
        values = array.flat if dtype is Datatype.BYTES else array.ravel().tolist()
        getattr(message, field.name).extend(values)
