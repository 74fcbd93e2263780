"""Text among the rows: in whatever form it is stored, it becomes an object array of bytes."""

from __future__ import annotations

import numpy as np

from bundle.tensors import Datatype
from optimize.data.source import invalid
from services.protocol.wire import encode_raw


def as_bytes(name: str, array: np.ndarray) -> np.ndarray:
    """Strings as UTF-8, bytes as they are; INVALID_INPUT for an element that is neither.

    numpy's own fixed-width bytes do not keep NULs at their end.
    """
    values = array.astype(object)
    for index, value in enumerate(values.flat):
        values.flat[index] = _encode(name, value)
    return values


def value_bytes(array: np.ndarray) -> bytes | memoryview:
    """All that makes up the values of `array`, for its digest."""
    if array.dtype == object:
        return encode_raw(Datatype.BYTES, array)
    return np.ascontiguousarray(array).data


def _encode(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise invalid(
            f"array {name!r} holds a value of type {type(value).__name__}, expected text",
            "Store strings or bytes.",
        )
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"array {name!r} holds text that is not Unicode: {error.reason}") from error
