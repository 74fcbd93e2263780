"""Rows of Parquet files: one column for each input, read in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.sampling import INPUT_PREFIX, REQUEST_ID
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from optimize.data.rows import Tensors
from optimize.data.source import (
    CHUNK_BYTES,
    LABEL_NAMES,
    LABELS,
    NO_MAP,
    NO_MISSING,
    ColumnMap,
    Missing,
    chunk_rows,
    find_columns,
    invalid,
)
from registry.quiet import first_line
from services.runtime.tabular.input_columns import find_feeds
from services.runtime.tabular.tensors import Tensors as RowTensors
from services.runtime.tabular.tensors import to_tensors

# pandas stores a frame's index under these names.
_INDEX_PREFIX = "__index_level_"
_READ_BYTES = 1024 * 1024
_MAP_HINT = "Drop or fill those rows, or map another column."
_LABELS_HINT = (
    "Labels are class numbers, positions in the sorted classes: pandas.Categorical(labels).codes"
)
_HINT = "Store one number, or one list of a fixed length, for each row in a column."


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The Parquet file at `path`, whose columns feed the inputs of `signature`.

    A column of numbers is an input [rows] or [rows, 1], as in the signature; a column of lists,
    nested or flat, has its values in row-major order. From a server's samples the inputs
    are read, and labels if they were added.

    With `columns` they are mapped and converted as in a batch run, and the others are not read.
    """

    path: Path
    signature: Signature
    chunk_bytes: int = CHUNK_BYTES
    missing: Missing = NO_MISSING
    columns: ColumnMap = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    def chunks(self) -> Iterator[Tensors]:
        pa, parquet = _libraries()
        try:
            with parquet.ParquetFile(self.path, buffer_size=_READ_BYTES) as file:
                if self.columns:
                    yield from self._mapped(file)
                    return
                columns = _columns(file.schema_arrow.names)
                inputs = find_columns(columns, self.signature).inputs
                step = self._rows_at_once(file, list(columns.values()))
                for batch in file.iter_batches(step, columns=list(columns.values())):
                    yield {
                        name: _array(column, batch.column(column), inputs.get(name), self.missing)
                        for name, column in columns.items()
                    }
        except (pa.lib.ArrowException, OSError) as error:
            raise invalid(f"{self.name} cannot be read: {first_line(error)}") from error

    def _mapped(self, file: Any) -> Iterator[Tensors]:
        """Yield the rows of mapped columns, converted to the inputs' datatypes."""
        import pyarrow as pa

        schema = file.schema_arrow
        columns, labels = dict(self.columns), [n for n in LABEL_NAMES if n in schema.names]
        inputs = {spec.name for spec in self.signature.inputs}
        if LABELS in columns.keys() - inputs:
            labels = list(columns.pop(LABELS))
            if len(labels) > 1 or labels[0] not in schema.names:
                raise invalid(f"--map {LABELS}: there is no column {','.join(labels)!r}")
        optional = {spec.name for spec in self.signature.inputs if self.missing.allows(spec)}
        feeds = find_feeds(schema, self.signature, columns, optional)
        fed = {name for feed in feeds for name in feed.columns}
        labels = [name for name in labels if name not in fed][:1]
        names = [*fed, *labels]
        start = 0
        for batch in file.iter_batches(self._rows_at_once(file, names), columns=names):
            groups, reasons = to_tensors(pa.Table.from_batches([batch]), feeds)
            if reasons:
                row = min(reasons)
                raise invalid(f"row {start + row}: {reasons[row]}", _MAP_HINT)
            found = _joined(groups, batch.num_rows)
            for name in labels:
                found[LABELS] = _array(name, batch.column(name), None, self.missing)
            yield found
            start += batch.num_rows

    def _rows_at_once(self, file: Any, names: list[str]) -> int:
        """Return how many rows make a chunk: all rows have the size of the first one."""
        first = next(file.iter_batches(1, columns=names), None)
        return chunk_rows(self.chunk_bytes, 0 if first is None else first.nbytes)


@dataclass(frozen=True, slots=True)
class FolderSource:
    """The Parquet files of a folder in the order of their names, such as a server's samples."""

    folder: Path
    files: tuple[ParquetRows, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    def chunks(self) -> Iterator[Tensors]:
        for file in self.files:
            yield from file.chunks()


def open_folder(
    folder: Path, signature: Signature, missing: Missing = NO_MISSING, columns: ColumnMap = NO_MAP
) -> FolderSource:
    """Return the files in `folder` now: a server may still be writing. INVALID_INPUT if empty."""
    paths = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
    if not paths:
        raise invalid(f"{folder} is a folder without Parquet files")
    return FolderSource(
        folder,
        tuple(ParquetRows(path, signature, missing=missing, columns=columns) for path in paths),
    )


def _libraries() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "Parquet files need the package pyarrow, which is not installed",
            "Install it with `pip install pyarrow`, or save the rows with numpy.savez.",
        ) from error
    return pa, parquet


def _columns(names: list[str]) -> dict[str, str]:
    """Return the columns that hold data by the names of their arrays."""
    if REQUEST_ID in names:  # a server's samples: bundle.sampling has the form
        columns = [name for name in names if name.startswith(INPUT_PREFIX) or name in LABEL_NAMES]
        return {name.removeprefix(INPUT_PREFIX): name for name in columns}
    return {name: name for name in names if not name.startswith(_INDEX_PREFIX)}


def _array(name: str, column: Any, spec: TensorSpec | None, missing: Missing) -> np.ndarray:
    """Return the column as an array, in the shape of `spec` if that is known."""
    from pyarrow import types

    shape = [len(column)]
    values = getattr(column, "storage", column)  # an extension type wraps lists
    if _is_ragged(values):
        return _ragged(name, values, missing, spec)
    while types.is_list(values.type) or types.is_large_list(values.type) or _fixed(values.type):
        _reject_missing(name, values)
        shape.append(_common_length(name, values))
        values = values.flatten()
    if spec is not None and missing.allows(spec):
        values = values.fill_null("" if spec.dtype is Datatype.BYTES else float("nan"))
    _reject_missing(name, values)
    _check_kind(name, values.type, text=spec is not None and spec.dtype is Datatype.BYTES)
    array: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(shape)
    return array if spec is None else _fit(array, spec)


def _check_kind(name: str, kind: Any, *, text: bool) -> None:
    from pyarrow import types

    tests = (
        (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        if text
        else (types.is_integer, types.is_floating, types.is_boolean)
    )
    if not any(test(kind) for test in tests):
        expected = "text" if text else "numbers"
        raise invalid(
            f"column {name!r} holds values of type {kind}, expected {expected}",
            _LABELS_HINT if name in LABEL_NAMES else _HINT,
        )


def _fixed(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_fixed_size_list(kind))


def _fit(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Reshape lists that are stored flat, and numbers that are stored bare."""
    shape = spec.shape[1:]
    if DYNAMIC in shape or math.prod(shape) != math.prod(array.shape[1:]):
        return array
    return array.reshape(len(array), *shape)


def _reject_missing(name: str, values: Any) -> None:
    if values.null_count:
        raise invalid(
            f"column {name!r} has {values.null_count} missing values",
            "Fill the missing values, or drop their rows.",
        )


def _common_length(name: str, lists: Any) -> int:
    low, high = _lengths(lists)
    if low != high:
        raise invalid(
            f"the lists in column {name!r} have {low} to {high} values",
            "Pad all inner lists to one length.",
        )
    return high


def _lengths(lists: Any) -> tuple[int, int]:
    """Return the length of the shortest and of the longest list."""
    from pyarrow import compute

    found = compute.min_max(compute.list_value_length(lists)).as_py()
    return int(found["min"] or 0), int(found["max"] or 0)


def _is_ragged(values: Any) -> bool:
    from pyarrow import types

    if not (types.is_list(values.type) or types.is_large_list(values.type)):
        return False
    low, high = _lengths(values)
    return low != high


def _ragged(name: str, lists: Any, missing: Missing, spec: TensorSpec | None) -> np.ndarray:
    """Return lists of unequal length as an object array with an array for each row."""
    _reject_missing(name, lists)
    flat = _array(name, lists.flatten(), None, missing)
    if spec is not None and spec.dtype is not Datatype.BYTES:
        _check_kind(name, lists.type.value_type, text=False)
    ends = np.cumsum([len(each) for each in lists])
    found = np.empty(len(lists), object)
    found[:] = np.split(flat, ends[:-1])
    return found


def _joined(groups: Sequence[RowTensors], rows: int) -> dict[str, np.ndarray]:
    """Return the rows of all groups in their order; unequal ones as an object array."""
    found: dict[str, np.ndarray] = {}
    for name, first in groups[0].arrays.items():
        parts = [group.arrays[name] for group in groups]
        equal = len({part.shape[1:] for part in parts}) == 1
        shape = (rows, *first.shape[1:]) if equal else (rows,)
        found[name] = np.empty(shape, first.dtype if equal else object)
        for group, part in zip(groups, parts, strict=True):
            for row, values in zip(group.rows, part, strict=True):
                found[name][row] = values
    return found
