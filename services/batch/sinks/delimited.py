"""Answers as a folder of CSV files, each with a header.

A list of fixed size is as many columns, `name_0`, `name_1`, ...; any other one is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from services.batch.base import SinkRequest
from services.batch.folder import FolderSink
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa


def open_sink(request: SinkRequest) -> FolderSink:
    """The folder at `request.location`."""
    return FolderSink(request.location, ".csv", _write)


def _write(table: pa.Table, file: IO[bytes]) -> None:
    from pyarrow import csv as arrow_csv

    arrow_csv.write_csv(flat(table), file)


def flat(table: pa.Table) -> pa.Table:
    """The table without lists."""
    import pyarrow as pa

    return pa.table(dict(each for field in table.schema for each in _flat(table, field)))


def _flat(table: pa.Table, field: Any) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    from pyarrow import compute, types

    column, kind = table[field.name], field.type
    # Tensors of more dimensions are lists too, under a name of their own.
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
        column = column.cast(kind)
    if types.is_fixed_size_list(kind) and not types.is_nested(kind.value_type):
        for index in range(kind.list_size):
            yield f"{field.name}_{index}", compute.list_element(column, index)
    elif types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        values = (as_json(value) for value in column.to_pylist())
        yield field.name, pa.array([_text(value) for value in values], pa.string())
    elif types.is_dictionary(kind):
        yield field.name, column.cast(kind.value_type)
    else:
        yield field.name, column


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
