"""Answers and quarantined rows as columns, and the answers that a column cannot hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.units import (
    DIGEST_COLUMN,
    FILE_COLUMN,
    REASON_COLUMN,
    ROW_COLUMN,
    TEXT_COLUMN,
    Piece,
    Unit,
)
from mlctl.services.tables.tensors import Reasons

NUL = "has a NUL character, which the output cannot store"


def require_columns(names: Sequence[str], signature: Signature, keep: Sequence[str]) -> None:
    """Check the columns to keep against the `names` of the input's columns.

    INVALID_INPUT for one that does not exist, is there twice, or has the name of an output.
    """
    taken = {spec.name for spec in signature.outputs} | {DIGEST_COLUMN}
    for name in keep:
        if name not in names:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: there is no such column; columns: {', '.join(names[:20])}",
            )
        if names.count(name) > 1:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: the input has {names.count(name)} columns of that name",
                "Leave it out, or rename the columns in the input.",
            )
        if name in taken:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: an output has that name as well",
                "Leave it out, or rename the column in the input.",
            )


def result_schema(signature: Signature, source: pa.Schema, keep: Sequence[str]) -> pa.Schema:
    """Return the columns of the answers: those kept, the outputs, and the model digest."""
    return pa.schema(
        [
            *(source.field(name) for name in keep),
            *(pa.field(spec.name, column_type(spec)) for spec in signature.outputs),
            pa.field(DIGEST_COLUMN, pa.dictionary(pa.int32(), pa.string())),
        ]
    )


def quarantine_schema(source: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the columns of the quarantine: those read, and file, row, reason and unreadable text.

    A run over a quarantine keeps its own file and row instead of those of the first input.
    """
    extra = [
        pa.field(FILE_COLUMN, pa.string()),
        pa.field(ROW_COLUMN, pa.int64()),
        pa.field(REASON_COLUMN, pa.string()),
        pa.field(TEXT_COLUMN, pa.string()),
    ]
    own = {field.name for field in extra}
    kept = (source.field(name) for name in columns if name not in own)
    return pa.schema([*(field.with_type(_readable(field.type)) for field in kept), *extra])


def _readable(kind: Any) -> Any:
    """Return a plain list for one of fixed size: pyarrow 25 cannot read null ones from Parquet."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return pa.list_(_readable(kind.value_type)) if pa.types.is_fixed_size_list(kind) else kind


def quarantine_table(
    schema: pa.Schema, unit: Unit, piece: Piece, table: pa.Table, reasons: Reasons, rows: np.ndarray
) -> pa.Table | None:
    """Return the rows of `table` that have a reason, and the unreadable ones; None if there are
    none.

    `rows` are the row numbers of the table in the unit's origin.
    """
    if not reasons and not piece.unreadable:
        return None
    bad, unreadable = sorted(reasons), piece.unreadable
    found = table.take(pa.array(bad, pa.int64())) if bad else table.slice(0, 0)
    missing = len(unreadable)
    columns = {
        FILE_COLUMN: [unit.origin] * (len(bad) + missing),
        ROW_COLUMN: [*rows[bad].tolist(), *(each.row for each in unreadable)],
        REASON_COLUMN: [*(reasons[row] for row in bad), *(each.reason for each in unreadable)],
        TEXT_COLUMN: [*(None for _ in bad), *(each.text for each in unreadable)],
    }
    arrays = []
    for field in schema:
        if field.name in columns:
            arrays.append(pa.chunked_array([pa.array(columns[field.name], field.type)]))
        else:
            empty = pa.chunked_array([pa.nulls(missing, field.type)]).chunks if missing else []
            bad_values = found[field.name]
            if bad_values.type != field.type:
                bad_values = bad_values.cast(field.type)
            arrays.append(pa.chunked_array([*bad_values.chunks, *empty], field.type))
    return pa.table(arrays, schema=schema)


def column_type(spec: TensorSpec) -> Any:
    """Return Arrow's type of an output: a list where a row has several values."""
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
    """Return the output as a column: flat in row-major order where a row has several values."""
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


def numbers(array: np.ndarray) -> Any:
    """Return the array's memory as a column; pa.array would first import pandas if it is there."""
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def digest_column(digest: str, rows: int) -> Any:
    """Return the model digest for each of `rows` rows."""
    data = digest.encode()
    ends = np.array([0, len(data)], np.int32)
    texts = pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))
    return pa.DictionaryArray.from_arrays(numbers(np.zeros(rows, np.int32)), texts)


def unusable(outputs: dict[str, np.ndarray], *, finite: bool, nul: bool) -> Reasons:
    """Return by index the rows whose answer cannot be stored, or must be finite and is not."""
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
