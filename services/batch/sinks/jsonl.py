"""Answers as a folder of JSON lines: one object a row; NaN and infinities are text."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from services.batch.base import SinkRequest
from services.batch.folder import FolderSink
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 2_000


def open_sink(request: SinkRequest) -> FolderSink:
    """The folder at `request.location`."""
    return FolderSink(request.location, ".jsonl", _write)


def _write(table: pa.Table, file: IO[bytes]) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    names = table.schema.names
    for batch in table.to_batches(_BATCH_ROWS):
        rows = zip(*map(_values, batch.columns), strict=True)
        lines = (encode(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        file.write("".join(lines).encode())


def _values(column: Any) -> list[Any]:
    """A column as values of JSON; one by one only where that cannot be told of all at once."""
    import pyarrow as pa
    from pyarrow import compute, types

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
    if finite and (types.is_primitive(inner) and not types.is_temporal(inner)):
        found: list[Any] = column.to_pylist()
        return found
    if types.is_nested(kind) or types.is_dictionary(kind):
        return [as_json(value) for value in column.to_pylist()]
    encoded = column.dictionary_encode()
    words = [*map(as_json, encoded.dictionary.to_pylist())]
    return [None if index is None else words[index] for index in encoded.indices.to_pylist()]
