"""Tensors on the wire, shared by HTTP and gRPC: declarations checked, raw bytes to arrays and back.

A tensor's name, datatype and shape are checked against the signature, and its element
count against the bytes that are there, before anything is allocated for it. Raw data is
little-endian and row-major; each BYTES element is preceded by its length in 4 bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Datatype, TensorSpec

MAX_ELEMENTS = 1 << 31
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded request. `outputs` are the requested names with whether each goes out as binary.

    `timeout` is the caller's limit in seconds, if it gave one.
    """

    id: str
    inputs: dict[str, np.ndarray]
    outputs: Mapping[str, bool]
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as a request declares it, found to fit the signature; `count` elements."""

    spec: TensorSpec
    shape: tuple[int, ...]
    count: int


def invalid(message: str) -> MlctlError:
    """INVALID_INPUT with `message`, which names the tensor and field at fault."""
    return MlctlError(ErrorCode.INVALID_INPUT, message)


def declare(
    specs: Mapping[str, TensorSpec], name: object, datatype: object, shape: Sequence[object]
) -> Declared:
    """Check one declared input against the signature's `specs`; INVALID_INPUT says what is off."""
    spec = specs.get(name) if isinstance(name, str) else None
    if spec is None:
        known = ", ".join(repr(known) for known in specs)
        raise invalid(f"input {_shown(name)} is unknown; the model's inputs are {known}")
    if not isinstance(datatype, str) or datatype not in Datatype.__members__:
        raise invalid(f"tensor {spec.name!r}: datatype {_shown(datatype)} is unknown")
    dims = _dimensions(spec, shape)
    if reason := spec.mismatch(Datatype(datatype), dims):
        raise invalid(reason)
    count = math.prod(dims)
    if count > MAX_ELEMENTS:
        raise invalid(f"tensor {spec.name!r}: {count} elements are more than {MAX_ELEMENTS}")
    return Declared(spec, dims, count)


def _dimensions(spec: TensorSpec, shape: Sequence[object]) -> tuple[int, ...]:
    if len(shape) != len(spec.shape):
        raise invalid(
            f"tensor {spec.name!r}: shape has {len(shape)} dimensions, expected {list(spec.shape)}"
        )
    dims = []
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_ELEMENTS:
            raise invalid(f"tensor {spec.name!r}: {_shown(size)} is not a size of a dimension")
        dims.append(size)
    return tuple(dims)


def decode_raw(declared: Declared, data: bytes | memoryview) -> np.ndarray:
    """The array in `data`; a read-only view of it except for BYTES."""
    spec = declared.spec
    if spec.dtype is Datatype.BYTES:
        return _decode_bytes(declared, data)
    itemsize = spec.dtype.itemsize
    assert itemsize is not None
    if len(data) != declared.count * itemsize:
        raise invalid(
            f"tensor {spec.name!r}: {len(data)} bytes of data, "
            f"expected {declared.count * itemsize} for shape {list(declared.shape)}"
        )
    array = np.frombuffer(data, dtype=_little_endian(spec.dtype))
    if spec.dtype is Datatype.BOOL and array.view(np.uint8).max(initial=0) > 1:
        raise invalid(f"tensor {spec.name!r}: a BOOL byte is neither 0 nor 1")
    return array.reshape(declared.shape)


def encode_raw(dtype: Datatype, array: np.ndarray) -> bytes:
    """The raw form of `array`, which has the numpy dtype of `dtype`."""
    if dtype is Datatype.BYTES:
        return b"".join(_LENGTH.pack(len(value)) + value for value in array.flat)
    return array.astype(_little_endian(dtype), copy=False).tobytes()


def check_outputs(specs: Mapping[str, TensorSpec], names: Sequence[object]) -> None:
    """INVALID_INPUT for a requested output that is unknown or asked for twice."""
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in specs:
            known = ", ".join(repr(known) for known in specs)
            raise invalid(f"output {_shown(name)} is unknown; the model's outputs are {known}")
        if name in names[:index]:
            raise invalid(f"output {name!r} is requested twice")


def _decode_bytes(declared: Declared, data: bytes | memoryview) -> np.ndarray:
    name = declared.spec.name
    if declared.count * _LENGTH.size > len(data):
        raise invalid(
            f"tensor {name!r}: {len(data)} bytes of data are too few for {declared.count} elements"
        )
    values = np.empty(declared.count, dtype=object)
    offset = 0
    for index in range(declared.count):
        if offset + _LENGTH.size > len(data):
            raise invalid(f"tensor {name!r}: the data ends before element {index}")
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        if offset + length > len(data):
            raise invalid(f"tensor {name!r}: the data ends inside of element {index}")
        values[index] = bytes(data[offset : offset + length])
        offset += length
    if offset != len(data):
        raise invalid(f"tensor {name!r}: {len(data) - offset} bytes are left after the data")
    return values.reshape(declared.shape)


def _little_endian(dtype: Datatype) -> np.dtype:
    return np.dtype(dtype.numpy_name).newbyteorder("<")


def _shown(value: object) -> str:
    """A caller's value for a message: its repr, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
