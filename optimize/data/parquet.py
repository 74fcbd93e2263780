"""Rows of Parquet files: columns feed the inputs as in a batch run, read in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.sampling import INPUT_PREFIX, REQUEST_ID
from mlctl.bundle.tensors import NO_MISSING, MissingValues, Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.optimize.data.rows import Tensors
from mlctl.optimize.data.source import (
    CHUNK_BYTES,
    LABEL_NAMES,
    LABELS,
    NO_MAP,
    ColumnMap,
    chunk_rows,
    invalid,
    one_label,
    reject_unknown,
)
from mlctl.services.tables.casts import cast, plain
from mlctl.services.tables.input_columns import InputColumns, find_feeds, is_list
from mlctl.services.tables.tensors import Tensors as RowTensors
from mlctl.services.tables.tensors import to_tensors

# pandas stores a frame's index under these names.
_INDEX_PREFIX = "__index_level_"
_READ_BYTES = 1024 * 1024
_ROWS_HINT = "Drop or fill those rows, or map another column."
_LABELS_HINT = (
    "Labels are class numbers, positions in the sorted classes: pandas.Categorical(labels).codes"
)


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The Parquet file at `path`, whose columns feed the inputs of `signature`.

    Columns are found and converted as in a batch run; lists, nested or flat, have their values in
    row-major order. From a server's samples the inputs are read, and labels if they were added.

    With `columns` they are mapped, and the others are not read.
    """

    path: Path
    signature: Signature
    chunk_bytes: int = CHUNK_BYTES
    missing: MissingValues = NO_MISSING
    columns: ColumnMap = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    def chunks(self) -> Iterator[Tensors]:
        pa, parquet = _libraries()
        try:
            with parquet.ParquetFile(self.path, buffer_size=_READ_BYTES) as file:
                yield from self._chunks(file)
        except (pa.lib.ArrowException, OSError) as error:
            raise invalid(f"{self.name} cannot be read: {first_line(error)}") from error

    def _chunks(self, file: Any) -> Iterator[Tensors]:
        import pyarrow as pa

        stated = file.schema_arrow.names
        if twice := next((name for name in stated if stated.count(name) > 1), None):
            raise invalid(
                f"{self.name} has {stated.count(twice)} columns named {twice!r}",
                "Leave out all but one of them, or rename them.",
            )
        names = _columns(stated)
        schema = pa.schema(
            [file.schema_arrow.field(name).with_name(as_) for as_, name in names.items()]
        )
        feeds, labels = self._find(schema)
        wanted = list(dict.fromkeys([*(name for feed in feeds for name in feed.columns), *labels]))
        stored = [names[name] for name in wanted]
        start = 0
        for batch in file.iter_batches(self._rows_at_once(file, stored), columns=stored):
            table = pa.Table.from_batches([batch]).select(stored).rename_columns(wanted)
            groups, reasons = to_tensors(table, feeds)
            if reasons:
                row = min(reasons)
                raise invalid(f"row {start + row}: {reasons[row]}", _ROWS_HINT)
            found = _joined(groups, batch.num_rows)
            for name in labels:
                found[LABELS] = _labels(name, table.column(name))
            yield found
            start += batch.num_rows

    def _find(self, schema: Any) -> tuple[tuple[InputColumns, ...], list[str]]:
        """Return the columns of each input, and the column of the labels if there is one."""
        columns, labels = dict(self.columns), [name for name in schema.names if name in LABEL_NAMES]
        if LABELS in columns.keys() - {spec.name for spec in self.signature.inputs}:
            labels = list(columns.pop(LABELS))
            if len(labels) > 1 or labels[0] not in schema.names:
                raise invalid(f"--map {LABELS}: there is no column {','.join(labels)!r}")
        feeds = find_feeds(schema, self.signature, columns, self.missing)
        fed = {name for feed in feeds for name in feed.columns}
        labels = one_label(name for name in labels if name not in fed)
        if not self.columns:
            reject_unknown(set(schema.names) - {*fed, *labels}, self.signature)
        return feeds, labels

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
    folder: Path,
    signature: Signature,
    missing: MissingValues = NO_MISSING,
    columns: ColumnMap = NO_MAP,
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
    if REQUEST_ID in names:  # a server's samples: mlctl.bundle.sampling has the form
        columns = [name for name in names if name.startswith(INPUT_PREFIX) or name in LABEL_NAMES]
        return {name.removeprefix(INPUT_PREFIX): name for name in columns}
    return {name: name for name in names if not name.startswith(_INDEX_PREFIX)}


def _labels(name: str, column: Any) -> np.ndarray:
    """Return labels [rows] or [rows, k]; INVALID_INPUT if they are not numbers."""
    if column.null_count:
        raise invalid(f"column {name!r} has {column.null_count} missing values", _ROWS_HINT)
    import pyarrow as pa
    from pyarrow import types

    column = plain(column)
    inner = column.type.value_type if is_list(column.type) else column.type
    whole = types.is_integer(inner) or types.is_boolean(inner)
    if whole or types.is_floating(inner) or types.is_decimal(inner):
        kind = pa.int64() if whole else pa.float64()
        found, misfits = cast(column, pa.list_(kind) if is_list(column.type) else kind)
        if not misfits:
            with suppress(TypeError, ValueError):  # lists of different lengths
                return np.array(found.to_pylist(), np.int64 if whole else np.float64)
    raise invalid(f"column {name!r} holds {column.type}, expected numbers", _LABELS_HINT)


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
