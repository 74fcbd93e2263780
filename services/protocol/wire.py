"""Tensors of HTTP and gRPC requests: check declarations, convert raw bytes to arrays and back.

A tensor's name, datatype and shape are checked against the signature, and its number of elements
against the received bytes, before memory is allocated for it. Raw data is little-endian and
row-major; each BYTES element is preceded by its length in 4 bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.priority import Priority, parse_priority

MAX_ELEMENTS = 1 << 31
_COLUMN_RANK = 2
make_tuple = tuple.__new__
_LENGTH = struct.Struct("<I")
# Keyed by str: members of an Enum are hashed in Python, which is slow on the path of a request.
_LITTLE_ENDIAN: Mapping[str, np.dtype] = MappingProxyType(
    {datatype.value: np.dtype(datatype.numpy_name).newbyteorder("<") for datatype in Datatype}
)
_IN_ORDER = "<|=" if sys.byteorder == "little" else "<|"
_MICROSECONDS = 1e6
# Triton's parameters of a streamed answer: this response is the last one; the caller wants an empty
# last response.
FINAL_RESPONSE = "triton_final_response"
WANTS_FINAL = "triton_enable_empty_final_response"
# Each changes the meaning or the location of tensors, so it must not be ignored.
_UNSERVED = frozenset(
    {
        "classification", "sequence_end", "sequence_id", "sequence_start",
        "shared_memory_byte_size", "shared_memory_offset", "shared_memory_region",
    }
)  # fmt: skip


class InferRequest(NamedTuple):
    """A decoded request. `outputs` maps the requested names to whether they are sent as binary.

    `timeout` is the caller's limit in seconds, or None; `keys` are the entity keys of the rows; a
    request with keys needs no inputs.

    A tuple because one is created per request, and a frozen dataclass takes three times as long.
    The path of a request makes it with `make_tuple`, which is without a call of a Python function.
    """

    id: str
    inputs: dict[str, np.ndarray]
    outputs: Mapping[str, bool]
    timeout: float | None = None
    priority: Priority = Priority.NORMAL
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as declared by a request, checked against the signature.

    It has `count` elements, of `dtype` in raw data (except BYTES). `raw_size` is the size of raw
    data in bytes if any bytes of that size are valid, else None. `is_column` is whether the request
    declares the shape [n, 1] for a tensor of `shape` [n].
    """

    spec: TensorSpec
    shape: tuple[int, ...]
    count: int
    dtype: np.dtype
    raw_size: int | None = None
    is_column: bool = False

    @property
    def sent_shape(self) -> tuple[int, ...]:
        """The shape that the request declares, in which JSON data may be nested."""
        return (*self.shape, 1) if self.is_column else self.shape


def invalid(message: str, hint: str | None = None) -> MlctlError:
    """Return INVALID_INPUT with `message`, which names the tensor and field at fault."""
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)


def declare(
    specs: Mapping[str, TensorSpec], name: object, datatype: object, shape: Sequence[object]
) -> Declared:
    """Check a declared input against the signature's `specs`; INVALID_INPUT on a mismatch.

    A tensor of shape [n] may be declared as [n, 1], as clients do that send columns of a table.
    """
    spec = specs.get(name) if isinstance(name, str) else None
    if spec is None:
        known = ", ".join(repr(known) for known in specs)
        raise invalid(f"input {shown(name)} is unknown; the model's inputs are {known}")
    if not isinstance(datatype, str) or datatype != spec.dtype:
        raise _wrong_datatype(spec, datatype)
    is_column = len(spec.shape) == 1 and _is_column(shape)
    if is_column:
        shape = shape[:1]
    if len(shape) != len(spec.shape):
        raise invalid(
            f"tensor {spec.name!r}: shape has {len(shape)} dimensions, expected {list(spec.shape)}"
        )
    dims, count, fits = [], 1, True
    for size, wanted in zip(shape, spec.shape, strict=True):
        if type(size) is not int or not 0 <= size <= MAX_ELEMENTS:  # a bool is an int, too
            raise invalid(f"tensor {spec.name!r}: {shown(size)} is not a size of a dimension")
        fits &= wanted in (size, DYNAMIC)
        count *= size
        dims.append(size)
    if not fits:
        raise invalid(f"tensor {spec.name!r}: shape is {dims}, expected {list(spec.shape)}")
    if count > MAX_ELEMENTS:
        raise invalid(f"tensor {spec.name!r}: {count} elements are more than {MAX_ELEMENTS}")
    dtype = _LITTLE_ENDIAN[datatype]
    checked = spec.dtype in (Datatype.BYTES, Datatype.BOOL)
    raw_size = None if checked else count * dtype.itemsize
    return Declared(spec, tuple(dims), count, dtype, raw_size, is_column)


def _is_column(shape: Sequence[object]) -> bool:
    """Return whether `shape` is [n, 1]."""
    return len(shape) == _COLUMN_RANK and type(shape[1]) is int and shape[1] == 1


def _wrong_datatype(spec: TensorSpec, datatype: object) -> MlctlError:
    if not isinstance(datatype, str) or datatype not in Datatype.__members__:
        return invalid(f"tensor {spec.name!r}: datatype {shown(datatype)} is unknown")
    return invalid(f"tensor {spec.name!r}: datatype is {datatype}, expected {spec.dtype.value}")


def decode_raw(
    declared: Declared, data: bytes, start: int = 0, size: int | None = None
) -> np.ndarray:
    """Return the array in `size` bytes of `data` from `start` on, or in the rest of them.

    A read-only view, except for BYTES.
    """
    if size is None:
        size = len(data) - start
    if size == declared.raw_size:
        return np.ndarray(declared.shape, declared.dtype, data, start)
    spec = declared.spec
    if spec.dtype is Datatype.BYTES:
        return _decode_bytes(declared, data[start : start + size])
    expected = declared.count * declared.dtype.itemsize
    if size != expected:
        raise invalid(
            f"tensor {spec.name!r}: {size} bytes of data, "
            f"expected {expected} for shape {list(declared.shape)}"
        )
    array: np.ndarray = np.ndarray(declared.shape, declared.dtype, data, start)
    if spec.dtype is Datatype.BOOL and array.view(np.uint8).max(initial=0) > 1:
        raise invalid(f"tensor {spec.name!r}: a BOOL byte is neither 0 nor 1")
    return array


def encode_raw(dtype: Datatype, array: np.ndarray) -> bytes:
    """Return the raw form of `array`, which has the numpy dtype of `dtype`."""
    if dtype is Datatype.BYTES:
        return b"".join(part for value in array.flat for part in (_LENGTH.pack(len(value)), value))
    if array.dtype.byteorder not in _IN_ORDER:
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


def check_outputs(specs: Mapping[str, TensorSpec], names: Sequence[object]) -> None:
    """Raise INVALID_INPUT for a requested output that is unknown or requested twice."""
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in specs:
            known = ", ".join(repr(known) for known in specs)
            raise invalid(f"output {shown(name)} is unknown; the model's outputs are {known}")
        if name in names[:index]:
            raise invalid(f"output {name!r} is requested twice")


def check_parameters(names: Collection[str], owner: str) -> None:
    """Raise INVALID_INPUT for a parameter of an unsupported extension."""
    if not _UNSERVED.isdisjoint(names):
        name = next(name for name in names if name in _UNSERVED)
        raise invalid(
            f"{owner}: parameter {name!r} belongs to an extension that is not served",
            "GET /v2 lists the extensions that are.",
        )


def check_timeout(value: object) -> float | None:
    """Return the `timeout` parameter, in microseconds, as seconds; None without one."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise invalid("parameter 'timeout' must be a positive number of microseconds")
    return value / _MICROSECONDS


def check_priority(value: object) -> Priority:
    """Return the priority of the `priority` parameter, normal without one."""
    return Priority.NORMAL if value is None else parse_priority(value)


def _decode_bytes(declared: Declared, data: bytes) -> np.ndarray:
    name = declared.spec.name
    if declared.count * _LENGTH.size > len(data):
        raise invalid(
            f"tensor {name!r}: {len(data)} bytes of data are too few for {declared.count} elements"
        )
    values = np.empty(declared.count, dtype=object)
    unpack, size = _LENGTH.unpack_from, len(data)
    start = 0
    for index in range(declared.count):
        first = start + _LENGTH.size
        if first > size:
            raise invalid(f"tensor {name!r}: the data ends before element {index}")
        start = first + unpack(data, start)[0]
        if start > size:
            raise invalid(f"tensor {name!r}: the data ends inside element {index}")
        values[index] = data[first:start]
    if start != size:
        raise invalid(f"tensor {name!r}: {size - start} bytes are left after the data")
    return values.reshape(declared.shape)


def shown(value: object) -> str:
    """Return a caller's value for a message: its repr, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
