"""Part files: Parquet with Zstandard, CSV with a header, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO, Any

import pyarrow as pa
from pyarrow import types

from mlctl.services.tables.values import as_json

_JSON_ROWS = 2_000


class ParquetPart:
    """Each table becomes one row group."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._writer: Any = parquet.ParquetWriter(file, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


class CsvPart:
    """A list of fixed size becomes the columns `name_0`, `name_1`, ...; any other list is JSON."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        from pyarrow import csv as arrow_csv

        self._writer: Any = arrow_csv.CSVWriter(file, _flat(schema.empty_table()).schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(_flat(table))

    def close(self) -> None:
        self._writer.close()


class JsonlPart:
    """One object per row; NaN and infinities are text."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names

    def write(self, table: pa.Table) -> None:
        encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
        for batch in table.to_batches(_JSON_ROWS):
            rows = zip(*map(_json_values, batch.columns), strict=True)
            lines = (encode(dict(zip(self._names, row, strict=True))) + "\n" for row in rows)
            self._file.write("".join(lines).encode())

    def close(self) -> None:
        """Nothing is buffered."""


# `write` appends tables of one schema; `close` completes the content, and leaves the file open.
PartWriter = ParquetPart | CsvPart | JsonlPart
PART_FORMATS: Mapping[str, type[PartWriter]] = MappingProxyType(
    {"parquet": ParquetPart, "csv": CsvPart, "jsonl": JsonlPart}
)


def _flat(table: pa.Table) -> pa.Table:
    """Return the table without lists and dictionaries."""
    return pa.table(dict(each for field in table.schema for each in _flat_field(table, field)))


def _flat_field(table: pa.Table, field: Any) -> Iterator[tuple[str, Any]]:
    from pyarrow import compute

    column, kind = table[field.name], field.type
    # Fixed-shape tensors are lists too, as an extension type.
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
        column = column.cast(kind)
    if types.is_fixed_size_list(kind) and not types.is_nested(kind.value_type):
        for index in range(kind.list_size):
            yield f"{field.name}_{index}", compute.list_element(column, index)
    elif types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        yield field.name, json_column(column)
    elif types.is_dictionary(kind):
        yield field.name, column.cast(kind.value_type)
    else:
        yield field.name, column


def _utc(times: Any) -> Any:
    kind = times.type
    return times.cast(pa.timestamp(kind.unit, "UTC")) if types.is_timestamp(kind) else times


def json_column(column: Any) -> Any:
    """Return a column of any type as text: strings as they are, other values as JSON."""
    values = (as_json(value) for value in column.to_pylist())
    return pa.array(
        [v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string()
    )


def _json_values(column: Any) -> list[Any]:
    """Return a column as JSON values; value by value only where its type requires it."""
    from pyarrow import compute

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column, kind = column.storage, kind.storage_type
    inner, values = kind, column
    while types.is_list(inner) or types.is_fixed_size_list(inner):
        inner, values = inner.value_type, values.flatten()
    finite = not types.is_floating(inner) or compute.all(compute.is_finite(values)).as_py() in {
        True,
        None,
    }
    if finite and types.is_primitive(inner) and not types.is_temporal(inner):
        found: list[Any] = column.to_pylist()
        return found
    if types.is_nested(kind) or types.is_dictionary(kind):
        return [as_json(value) for value in column.to_pylist()]
    encoded = column.dictionary_encode()
    try:
        words = [*map(as_json, encoded.dictionary.to_pylist())]
    except (ValueError, OverflowError):  # times and time zones that Python does not have
        words = _utc(encoded.dictionary).cast(pa.string()).to_pylist()
    return [None if index is None else words[index] for index in encoded.indices.to_pylist()]
