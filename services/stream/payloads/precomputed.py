"""Answers on their way to the store of precomputed ones: rows as it has them, with their keys."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bundle.tensors import Signature
from services.precomputed.row_codec import RowCodec
from services.protocol.keys import key_text
from services.protocol.wire import invalid
from services.stream.base import Decoded, Payload
from services.stream.payloads import PayloadRequest, open_payload
from services.stream.payloads.objects import Carried

_SIZE = struct.Struct("<H")


class PrecomputedPayload:
    """Decodes as `wanted` says. With `field` that field of a message is its row's key."""

    name = "precomputed"

    def __init__(self, wanted: PayloadRequest, signature: Signature, field: str | None) -> None:
        keep = () if field is None else (field,)
        self._field = field
        self._inner: Payload = open_payload(replace(wanted, keep=keep), signature)
        self._codec = RowCodec(signature.outputs)

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        return self._inner.decode(values)

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        if sum(rows) != len(rows):
            raise invalid("a message of several rows has one entity key; send one row in each")
        payloads = self._codec.encode(dict(outputs))
        keys = [self._key(each) for each in carried] if carried else [b""] * len(rows)
        return [
            b"%b%b%b" % (_SIZE.pack(len(key)), key, payload)
            for key, payload in zip(keys, payloads, strict=True)
        ]

    def _key(self, carried: Any) -> bytes:
        """The key in the message; empty where its own key is meant."""
        if self._field is None:
            return b""
        if isinstance(carried, Carried):
            if self._field not in carried.kept:
                raise invalid(f"field {self._field!r}, the entity key, is missing")
            return key_text(carried.kept[self._field]).encode()
        return key_text(carried.column(self._field)[0].as_py()).encode()


def split_value(value: bytes) -> tuple[str, bytes]:
    """The key that a value carries, or nothing, and the row's bytes."""
    (size,) = _SIZE.unpack_from(value)
    start = _SIZE.size + size
    return value[_SIZE.size : start].decode(), value[start:]
