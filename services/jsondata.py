"""Tensor data in JSON: numbers and strings to arrays without silent conversions, and back.

Numbers may be flat or nested in the declared shape. An integer tensor takes no
fraction, a BOOL tensor no number, nothing overflows quietly; FP16 and BF16 have no
JSON form in the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Datatype, TensorSpec
from services.wire import Declared, invalid

BINARY_ONLY = frozenset({Datatype.FP16, Datatype.BF16})
_FLOATS = frozenset({Datatype.FP32, Datatype.FP64})


def decode_data(declared: Declared, data: object) -> np.ndarray:
    """The array of a tensor's JSON `data`; INVALID_INPUT names the tensor and the reason."""
    spec = declared.spec
    if spec.dtype in BINARY_ONLY:
        raise invalid(f"tensor {spec.name!r}: {spec.dtype.value} must be sent as binary data")
    if not isinstance(data, list):
        raise invalid(f"tensor {spec.name!r}: data is not an array")
    if spec.dtype is Datatype.BYTES:
        return _texts(declared, data)
    # Before numpy sees them: it makes room for the longest of all texts for each value.
    count = _count(spec, data)
    if count != declared.count:
        raise _wrong_count(declared, (count,))
    found = _as_array(spec, data)
    if found.ndim > 1 and found.shape != declared.shape:
        raise _wrong_count(declared, found.shape)
    return found.reshape(declared.shape)


def encode_data(spec: TensorSpec, array: np.ndarray) -> list[Any]:
    """The flat JSON data of an output; INVALID_INPUT if only binary data can carry it."""
    if spec.dtype in BINARY_ONLY:
        raise invalid(f"output {spec.name!r} is {spec.dtype.value}: request it as binary data")
    if spec.dtype is Datatype.BYTES:
        try:
            return [value.decode() for value in array.flat]
        except UnicodeDecodeError:
            raise invalid(
                f"output {spec.name!r} is not UTF-8 text: request it as binary data"
            ) from None
    if spec.dtype in _FLOATS and not np.isfinite(array).all():
        raise MlctlError(
            ErrorCode.INTERNAL,
            f"output {spec.name!r} is not finite, which JSON cannot carry",
            "Request it as binary data.",
        )
    values: list[Any] = array.ravel().tolist()
    return values


def _count(spec: TensorSpec, data: list[Any], depth: int = 1) -> int:
    """How many values are in the nested lists `data`; INVALID_INPUT if one is of a wrong type."""
    kinds = set(map(type, data))
    if list not in kinds:
        if not kinds <= _json_types(spec.dtype):
            raise _wrong_type(spec)
        return len(data)
    if len(kinds) > 1 or depth >= len(spec.shape):
        raise _ragged(spec)
    return sum(_count(spec, part, depth + 1) for part in data)


def _json_types(dtype: Datatype) -> frozenset[type]:
    if dtype in _FLOATS:
        return frozenset({int, float})
    return frozenset({bool if dtype is Datatype.BOOL else int})


def _as_array(spec: TensorSpec, data: list[Any]) -> np.ndarray:
    wanted = np.dtype(spec.dtype.numpy_name)
    try:
        with np.errstate(over="ignore"):
            found = np.array(data, dtype=wanted)
    except OverflowError:
        raise _out_of_range(spec) from None
    except ValueError:
        raise _ragged(spec) from None
    if spec.dtype in _FLOATS and not np.isfinite(found).all():
        raise _out_of_range(spec)
    return found


def _out_of_range(spec: TensorSpec) -> MlctlError:
    if spec.dtype in _FLOATS:
        return invalid(f"tensor {spec.name!r}: a value does not fit {spec.dtype.value}")
    limits = np.iinfo(spec.dtype.numpy_name)
    return invalid(f"tensor {spec.name!r}: a value is outside of {limits.min} to {limits.max}")


def _ragged(spec: TensorSpec) -> MlctlError:
    return invalid(f"tensor {spec.name!r}: data is ragged or nested too deep")


def _wrong_type(spec: TensorSpec) -> MlctlError:
    return invalid(f"tensor {spec.name!r}: a value is not of datatype {spec.dtype.value}")


def _texts(declared: Declared, data: list[Any]) -> np.ndarray:
    texts = list(_flatten(declared.spec, data))
    if len(texts) != declared.count:
        raise _wrong_count(declared, (len(texts),))
    values = np.empty(len(texts), dtype=object)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(f"tensor {declared.spec.name!r}: element {index} is not a string")
        values[index] = _encode_text(declared.spec, text)
    return values.reshape(declared.shape)


def _encode_text(spec: TensorSpec, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise invalid(f"tensor {spec.name!r}: a string has a lone surrogate") from None


def _flatten(spec: TensorSpec, data: list[Any], depth: int = 1) -> Iterator[Any]:
    if depth > max(1, len(spec.shape)):
        raise invalid(f"tensor {spec.name!r}: data is nested deeper than its shape")
    for item in data:
        if isinstance(item, list):
            yield from _flatten(spec, item, depth + 1)
        else:
            yield item


def _wrong_count(declared: Declared, found: tuple[int, ...]) -> MlctlError:
    return invalid(
        f"tensor {declared.spec.name!r}: data has shape {list(found)}, "
        f"expected {declared.count} elements for shape {list(declared.shape)}"
    )
