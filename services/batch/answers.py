"""Answers as columns of a table, and the answers for which there is no place in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.batch.base import DIGEST_COLUMN, SCORED_AT_COLUMN
from services.runtime.tabular.tensors import Reasons

if TYPE_CHECKING:
    import pyarrow as pa

NUL = "has a NUL character, for which the output has no place"


def result_schema(signature: Signature, source: pa.Schema, keep: Sequence[str]) -> pa.Schema:
    """The columns of the answers: those kept, the outputs, the digest and the time.

    INVALID_INPUT for a column that is not there, or whose name an output has as well.
    """
    import pyarrow as pa

    taken = {spec.name for spec in signature.outputs} | {DIGEST_COLUMN, SCORED_AT_COLUMN}
    for name in keep:
        if name not in source.names:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: there is no such column; there are {', '.join(source.names[:20])}",
            )
        if name in taken:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: an output has that name as well",
                "Leave it out, or rename the column in the input.",
            )
    return pa.schema(
        [
            *(source.field(name) for name in keep),
            *(pa.field(spec.name, column_type(spec)) for spec in signature.outputs),
            pa.field(DIGEST_COLUMN, pa.dictionary(pa.int32(), pa.string())),
            pa.field(SCORED_AT_COLUMN, pa.timestamp("us", tz="UTC")),
        ]
    )


def column_type(spec: TensorSpec) -> Any:
    """Arrow's type of an output: a list where a row has several values."""
    import pyarrow as pa

    value = (
        pa.string()
        if spec.dtype is Datatype.BYTES
        else pa.from_numpy_dtype(np.dtype(spec.dtype.numpy_name))
    )
    inner = spec.shape[1:]
    if DYNAMIC in inner:
        return pa.list_(value)
    width = math.prod(inner)
    return value if width == 1 else pa.list_(value, width)


def output_column(spec: TensorSpec, array: np.ndarray) -> Any:
    """The output as a column: flat in row-major order where a row has several values."""
    import pyarrow as pa

    kind = column_type(spec)
    flat = np.ascontiguousarray(array).reshape(-1)
    if spec.dtype is Datatype.BYTES:
        texts = [value.decode() for value in flat.tolist()]
        values = pa.array(texts, pa.string())
    else:
        values = pa.array(flat) if flat.dtype == bool else numbers(flat)
    if not pa.types.is_nested(kind):
        return values
    width = math.prod(array.shape[1:])
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, width)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(numbers(offsets), values)


def numbers(array: np.ndarray, kind: Any = None) -> Any:
    """The array's own memory as a column; pa.array would load pandas, if there is one, to look."""
    import pyarrow as pa

    kind = kind or pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def text_column(text: str) -> Any:
    """A column of one text, likewise."""
    import pyarrow as pa

    data = text.encode()
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))


def unusable(outputs: dict[str, np.ndarray], *, finite: bool, nul: bool) -> Reasons:
    """By index the rows whose answer cannot be stored, or is not `finite` if it must be."""
    found: Reasons = {}
    for name, array in outputs.items():
        flat = array.reshape(len(array), -1)
        if finite and array.dtype.kind == "f":
            wrong = np.flatnonzero(~np.isfinite(flat).all(axis=1)).tolist()
            found |= dict.fromkeys(wrong, f"the answer {name!r} is not finite")
        elif array.dtype == object:
            wrong = [index for index, row in enumerate(flat) if not all(map(_is_text, row))]
            found |= dict.fromkeys(wrong, f"the answer {name!r} is not UTF-8 text")
            if not nul:
                wrong = [index for index, row in enumerate(flat) if b"\0" in b"".join(row)]
                found |= dict.fromkeys(wrong, f"the answer {name!r} {NUL}")
    return found


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
