"""Encode one row's outputs as bytes, and decode the bytes of many rows to arrays.

A row has the outputs in the order of the signature, each in the raw form of the V2 protocol. The
model's digest identifies the signature, so it is not stored.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.precomputed.base import StoreError
from mlctl.services.protocol.wire import encode_raw

_LENGTH = struct.Struct("<I")


def check_storable(outputs: Sequence[TensorSpec]) -> None:
    """Raise UNSUPPORTED_MODEL for a model whose outputs do not have rows of a fixed shape."""
    for spec in outputs:
        if spec.shape[0] != DYNAMIC or DYNAMIC in spec.shape[1:]:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"output {spec.name!r} has the shape {list(spec.shape)}, and only outputs of "
                "[-1, fixed sizes] can be precomputed",
            )


class RowCodec:
    """Encodes the rows of a model's `outputs` and decodes them."""

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        check_storable(outputs)
        self._specs = outputs
        self._plain = all(spec.dtype is not Datatype.BYTES for spec in self._specs)
        self._kind = np.dtype([(spec.name, *_field(spec)) for spec in self._specs if self._plain])

    def encode(self, outputs: Mapping[str, np.ndarray]) -> list[bytes]:
        """Return the payload of each row."""
        rows = len(outputs[self._specs[0].name])
        if not self._plain:
            return [
                b"".join(encode_raw(s.dtype, outputs[s.name][row : row + 1]) for s in self._specs)
                for row in range(rows)
            ]
        table = np.empty(rows, self._kind)
        for spec in self._specs:
            table[spec.name] = outputs[spec.name]
        content, size = table.tobytes(), self._kind.itemsize
        return [content[start : start + size] for start in range(0, rows * size, size)]

    def fits(self, payload: bytes) -> bool:
        """Whether `decode` accepts `payload`."""
        if self._plain:
            return len(payload) == self._kind.itemsize
        try:
            self._decode_texts((payload,))
        except StoreError:
            return False
        return True

    def decode(self, payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Return the outputs of rows; StoreError for bytes that are not a row of this model."""
        if not self._plain:
            return self._decode_texts(payloads)
        size = self._kind.itemsize
        if any(len(payload) != size for payload in payloads):
            raise StoreError("a row does not have the size of the model's answers")
        table = np.frombuffer(b"".join(payloads), self._kind)
        return {spec.name: table[spec.name] for spec in self._specs}

    def _decode_texts(self, payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for spec in self._specs:
            kind = object if spec.dtype is Datatype.BYTES else np.dtype(spec.dtype.numpy_name)
            outputs[spec.name] = np.empty((len(payloads), *spec.shape[1:]), kind)
        for row, payload in enumerate(payloads):
            start = 0
            for spec in self._specs:
                values, start = _take(spec, payload, start)
                outputs[spec.name][row] = values
            if start != len(payload):
                raise StoreError("a row is longer than the model's answers")
        return outputs


def _field(spec: TensorSpec) -> tuple[np.dtype, tuple[int, ...]]:
    return np.dtype(spec.dtype.numpy_name).newbyteorder("<"), spec.shape[1:]


def _take(spec: TensorSpec, payload: bytes, start: int) -> tuple[np.ndarray, int]:
    """Return the values of one output that start at `start`, and their end."""
    count = math.prod(spec.shape[1:])
    try:
        if spec.dtype is not Datatype.BYTES:
            dtype, shape = _field(spec)
            values = np.frombuffer(payload, dtype, count, start).reshape(shape)
            return values, start + count * dtype.itemsize
        texts = np.empty(count, object)
        for index in range(count):
            (size,) = _LENGTH.unpack_from(payload, start)
            start += _LENGTH.size
            texts[index] = payload[start : start + size]
            start += size
    except (ValueError, struct.error) as error:
        raise StoreError("a row is shorter than the model's answers") from error
    return texts.reshape(spec.shape[1:]), start
