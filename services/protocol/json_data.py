"""Tensor data in JSON: numbers and strings to arrays without silent conversions, and back.

Data may be flat or nested in the declared shape. An integer tensor accepts no fractions and a BOOL
tensor no numbers; overflow is an error; BF16 has no JSON form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.json_body import Numbers
from mlctl.services.protocol.wire import Declared, invalid, shown

# Looked up once: members of an Enum are found and hashed in Python, for every answer.
_BF16, _BYTES = Datatype.BF16, Datatype.BYTES
BINARY_ONLY = frozenset({_BF16})
_FLOATS = frozenset({Datatype.FP16, Datatype.FP32, Datatype.FP64})
STRUCT_CODES: Mapping[str, str] = MappingProxyType(
    {
        "FP32": "f", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
        "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    }
)  # fmt: skip
_STRUCT_VALUES = 4096
_HALF = 2  # bytes of a number whose product is soon out of range
_NUMBER = frozenset({int, float})
_WHOLE = frozenset({int})
_OTHER: Mapping[Datatype, frozenset[type]] = MappingProxyType(
    {
        Datatype.BOOL: frozenset({bool}),
        Datatype.BYTES: frozenset({str}),
        **dict.fromkeys(_FLOATS, _NUMBER),
    }
)
_CALLED: Mapping[type, str] = MappingProxyType(
    {bool: "true and false", str: "strings", int: "whole numbers", float: "numbers"}
)


def decode_nullable(
    spec: TensorSpec, values: Sequence[Any], decode: Callable[[list[Any]], np.ndarray]
) -> np.ndarray:
    """Return one value per row, with NaN or empty text where it is None.

    `decode` converts the other values, and raises INVALID_INPUT for a wrong one.
    """
    missing = [number for number, value in enumerate(values) if value is None]
    text = spec.dtype is _BYTES
    filler = "" if text else 0
    array = decode([filler if value is None else value for value in values])
    if missing and not text:
        array = array.copy()
        array[missing] = np.nan
    return array


def decode_flat(declared: Declared, text: bytes) -> np.ndarray | None:
    """Return the array of a tensor whose data is the flat JSON array `text`; None for no JSON.

    Raises what `decode_data` does.
    """
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if declared.spec.dtype.value == "FP32" and len(data) == declared.count <= _STRUCT_VALUES:
        # Only true, null, false, strings and objects have one of these characters. A search of the
        # text takes a tenth of the time of a look at each value.
        numbers = b"u" not in text and b"s" not in text and b'"' not in text and b"{" not in text
        packed = _pack("f", data) if numbers else None
        if packed is not None:
            return np.ndarray(declared.shape, declared.dtype, packed)
    return decode_data(declared, data)


def decode_data(declared: Declared, data: object) -> np.ndarray:
    """Return the array of a tensor's JSON `data`; INVALID_INPUT names the tensor and the reason."""
    spec = declared.spec
    if spec.dtype in BINARY_ONLY:
        raise invalid(f"tensor {spec.name!r}: {spec.dtype.value} must be sent as binary data")
    if isinstance(data, Numbers):
        return _from_numbers(declared, data)
    if not isinstance(data, list):
        raise invalid(f"tensor {spec.name!r}: field 'data' must be an array")
    # Before numpy, which allocates the length of the longest string for every value.
    sent = declared.sent_shape
    count = _count(spec, data, _OTHER.get(spec.dtype, _WHOLE), len(sent))
    if count != declared.count:
        raise _wrong_count(declared, (count,))
    if spec.dtype is Datatype.BYTES:
        return _texts(declared, data)
    found = _as_array(spec, data)
    if found.ndim > 1 and found.shape != sent:
        raise _wrong_count(declared, found.shape)
    return found.reshape(declared.shape)


def encode_data(spec: TensorSpec, array: np.ndarray) -> np.ndarray | list[str]:
    """Return the flat data of an output for `orjson`; INVALID_INPUT if it must be binary data."""
    if spec.dtype is _BF16:
        raise invalid(f"output {spec.name!r} is {spec.dtype.value}: request it as binary data")
    if spec.dtype is _BYTES:
        try:
            return [value.decode() for value in array.flat]
        except UnicodeDecodeError:
            raise invalid(
                f"output {spec.name!r} is not UTF-8 text: request it as binary data"
            ) from None
    if array.dtype.kind == "f" and not _finite(array):
        raise _not_finite(spec)
    flat = array.ravel()
    return flat if flat.dtype.isnative else flat.astype(flat.dtype.newbyteorder("="))


def dump_data(spec: TensorSpec, array: np.ndarray) -> bytes:
    """Return the JSON of an output's flat data; raises what `encode_data` does."""
    if array.dtype.kind == "f" and array.dtype.isnative:
        data = orjson.dumps(array.ravel(), option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" in data:  # a search takes a fifth of the time of a look at the array
            raise _not_finite(spec)
        return data
    return orjson.dumps(encode_data(spec, array), option=orjson.OPT_SERIALIZE_NUMPY)


def _not_finite(spec: TensorSpec) -> MlctlError:
    return MlctlError(
        ErrorCode.INTERNAL,
        f"output {spec.name!r} is not finite, which JSON does not support",
        "Request it as binary data.",
    )


@lru_cache(maxsize=256)
def _packer(code: str, count: int) -> Callable[..., bytes]:
    return struct.Struct(f"={count}{code}").pack


def _pack(code: str, values: list[Any]) -> bytes | None:
    """Return the raw form of numbers; None if they are none, or one is out of the range."""
    try:
        packed = _packer(code, len(values))(*values)
        return packed if isfinite(sum(values)) else None
    except (struct.error, OverflowError, TypeError):
        return None


def _count(spec: TensorSpec, data: list[Any], allowed: frozenset[type], depth: int = 1) -> int:
    """Count the values in lists nested up to `depth`; INVALID_INPUT if one has a wrong type."""
    kinds = set(map(type, data))
    if list not in kinds:
        if not kinds <= allowed:
            raise _wrong_type(spec, data, allowed)
        return len(data)
    if len(kinds) > 1 or depth <= 1:
        raise _ragged(spec)
    return sum(_count(spec, part, allowed, depth - 1) for part in data)


def _from_numbers(declared: Declared, numbers: Numbers) -> np.ndarray:
    spec, filled = declared.spec, 0
    # Allocates at most what the body can contain, independent of the declared shape.
    found = np.empty(min(declared.count, numbers.max_count), spec.dtype.numpy_name)
    for values in numbers.pieces():
        _count(spec, values, _OTHER.get(spec.dtype, _WHOLE))
        end = filled + len(values)
        if end <= found.size:
            found[filled:end] = _as_array(spec, values)
        filled = end
    if filled != declared.count:
        raise _wrong_count(declared, (filled,))
    return found.reshape(declared.shape)


def _as_array(spec: TensorSpec, data: list[Any]) -> np.ndarray:
    code = STRUCT_CODES.get(spec.dtype.value)
    if code is not None and len(data) <= _STRUCT_VALUES:
        # For few values three times as fast as numpy. None for nested lists, and for values out of
        # range, which are reported below.
        packed = _pack(code, data)
        if packed is not None:
            return np.frombuffer(packed, spec.dtype.numpy_name)
    wanted = np.dtype(spec.dtype.numpy_name)
    try:
        with np.errstate(over="ignore"):
            found = np.array(data, dtype=wanted)
    except OverflowError:
        raise _out_of_range(spec) from None
    except ValueError:
        raise _ragged(spec) from None
    if spec.dtype in _FLOATS and not _finite(found):
        raise _out_of_range(spec)
    return found


def _finite(array: np.ndarray) -> bool:
    # A product of all values is cheaper than a look at each, which tells large ones from infinity.
    if array.dtype.itemsize > _HALF and isfinite(np.vdot(array, array)):
        return True
    return int(np.count_nonzero(np.isfinite(array))) == array.size


def _out_of_range(spec: TensorSpec) -> MlctlError:
    if spec.dtype in _FLOATS:
        return invalid(f"tensor {spec.name!r}: a value does not fit {spec.dtype.value}")
    limits = np.iinfo(spec.dtype.numpy_name)
    return invalid(f"tensor {spec.name!r}: a value is outside {limits.min} to {limits.max}")


def _ragged(spec: TensorSpec) -> MlctlError:
    return invalid(
        f"tensor {spec.name!r}: data is ragged or nested too deeply for shape {list(spec.shape)}"
    )


def _wrong_type(spec: TensorSpec, data: list[Any], allowed: frozenset[type]) -> MlctlError:
    value = next(value for value in data if type(value) not in allowed)
    # The JSON parser returns integers that exceed 64 bits as floats.
    if allowed is _WHOLE and type(value) is float and abs(value) >= 1 << 63:
        return _out_of_range(spec)
    wanted = _CALLED[float if allowed is _NUMBER else next(iter(allowed))]
    found = "null" if value is None else shown(value)
    return invalid(
        f"tensor {spec.name!r}: {found} is not of datatype {spec.dtype.value}, "
        f"which accepts {wanted}"
    )


def _texts(declared: Declared, data: list[Any]) -> np.ndarray:
    values = np.array(data, dtype=object)
    if values.size != declared.count:  # uneven lists stay lists
        raise _ragged(declared.spec)
    if values.ndim > 1 and values.shape != declared.sent_shape:
        raise _wrong_count(declared, values.shape)
    try:
        values.flat[:] = [text.encode() for text in values.flat]
    except UnicodeEncodeError:
        raise invalid(f"tensor {declared.spec.name!r}: a string has a lone surrogate") from None
    return values.reshape(declared.shape)


def _wrong_count(declared: Declared, found: tuple[int, ...]) -> MlctlError:
    return invalid(
        f"tensor {declared.spec.name!r}: data has shape {list(found)}, "
        f"expected {declared.count} elements for shape {list(declared.shape)}"
    )
