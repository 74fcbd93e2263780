"""Arrow tables in the text that PostgreSQL's COPY takes, a column at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_ROWS = 10_000


def column_type(kind: Any) -> str:
    """The type of PostgreSQL for an Arrow type; lists are arrays, what is nested otherwise JSON."""
    import pyarrow as pa
    from pyarrow import types

    kind = _stored(kind)
    if types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if _is_list(kind) and _is_number(kind.value_type):
        return f"{column_type(kind.value_type)}[]"
    if types.is_nested(kind):
        return "jsonb"
    if types.is_decimal(kind):
        return "numeric"
    names = {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.uint8(): "smallint",
        pa.int16(): "smallint",
        pa.uint16(): "integer",
        pa.int32(): "integer",
        pa.uint32(): "bigint",
        pa.int64(): "bigint",
        pa.uint64(): "numeric",
        pa.float16(): "real",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.date32(): "date",
        pa.binary(): "bytea",
        pa.large_binary(): "bytea",
    }
    return names.get(kind, "text")


def copied(table: pa.Table) -> Iterator[Any]:
    """The rows as CSV without a header, in blocks; a null is empty, an empty text is quoted."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    options = arrow_csv.WriteOptions(include_header=False)
    for start in range(0, table.num_rows, _BLOCK_ROWS):
        part = table.slice(start, _BLOCK_ROWS)
        columns = [_plain(part.column(index)) for index in range(part.num_columns)]
        sink = pa.BufferOutputStream()
        arrow_csv.write_csv(pa.table(columns, part.schema.names), sink, options)
        yield sink.getvalue().to_pybytes()


def _plain(column: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    kind = _stored(column.type)
    if kind != column.type:
        column = column.cast(kind)
    if _is_list(kind) and _is_number(kind.value_type):
        return _arrays(pa.concat_arrays(column.cast(pa.list_(kind.value_type)).chunks))
    if types.is_nested(kind):
        values = (None if v is None else json.dumps(as_json(v)) for v in column.to_pylist())
        return pa.array(values, pa.string())
    if types.is_binary(kind) or types.is_large_binary(kind):
        hexed = (None if v is None else "\\x" + v.hex() for v in column.to_pylist())
        return pa.array(hexed, pa.string())
    return column.cast(pa.float32()) if types.is_float16(kind) else column


def _arrays(lists: Any) -> Any:
    """Lists of numbers as the text of arrays: {1,2,NULL}."""
    import pyarrow as pa
    from pyarrow import compute

    first, last = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    # A null inside would make the whole list null; the word for it does not.
    texts = compute.fill_null(lists.values.slice(first, last - first).cast(pa.string()), "NULL")
    offsets = compute.subtract(lists.offsets, lists.offsets[0])
    joined = compute.binary_join(
        pa.ListArray.from_arrays(offsets, texts, mask=lists.is_null()), ","
    )
    return compute.binary_join_element_wise("{", joined, "}", "")


def _stored(kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if isinstance(kind, pa.BaseExtensionType):
        return _stored(kind.storage_type)
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
