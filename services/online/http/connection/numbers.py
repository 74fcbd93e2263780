"""The numbers of an array in JSON become a tensor's bytes, without a numpy array in between."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

import orjson

from bundle.tensors import Datatype
from services.protocol.wire import Declared

# Makes bytes of the numbers that it is given; raises unless they are as many as it wants, and fit.
Pack = Callable[..., bytes]

# How `struct` calls what JSON has as numbers.
CODES: Mapping[Datatype, str] = MappingProxyType(
    {
        Datatype.UINT8: "B",
        Datatype.UINT16: "H",
        Datatype.UINT32: "I",
        Datatype.UINT64: "Q",
        Datatype.INT8: "b",
        Datatype.INT16: "h",
        Datatype.INT32: "i",
        Datatype.INT64: "q",
        Datatype.FP16: "e",
        Datatype.FP32: "f",
        Datatype.FP64: "d",
    }
)


def pack_of(declared: Declared) -> Pack:
    """What makes the raw form of a tensor, whose datatype is one of `CODES`."""
    return struct.Struct(f"<{declared.count}{CODES[declared.spec.dtype]}").pack


def read_numbers(pack: Pack, data: bytes, place: slice) -> bytes | None:
    """The raw form of the array that is at `place` in `data`; None if it is not what it should be.

    `place` has brackets at both ends, and no other closing one and no quotes (`Frame.cut`).
    """
    start, stop = place.start, place.stop
    # Of all values that are no numbers, only true and false could be packed.
    if data.find(b"t", start, stop) >= 0 or data.find(b"f", start, stop) >= 0:
        return None
    try:
        return pack(*orjson.loads(memoryview(data)[place]))
    except (orjson.JSONDecodeError, struct.error, OverflowError):
        return None
