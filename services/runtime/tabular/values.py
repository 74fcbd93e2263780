"""Convert a row's values to JSON and back, so that a quarantined row can be scored again.

Values without a JSON form are text: NaN and infinities by name, times in ISO 8601, decimals as
digits, bytes in base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def as_json(value: object) -> object:
    """Convert a value of an Arrow table to a JSON value."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [as_json(each) for each in value]
        case Mapping():
            return {str(key): as_json(each) for key, each in value.items()}
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


def row_as_json(table: pa.Table, index: int) -> dict[str, object]:
    """Return row `index` of `table` by column name."""
    row = table.slice(index, 1).to_pylist()[0]
    return {str(name): as_json(value) for name, value in row.items()}


def with_nul(table: pa.Table) -> dict[int, str]:
    """Return the indices of rows whose text has a NUL character, with the first such column."""
    found: dict[int, str] = {}
    for name in reversed(table.schema.names):
        rows = [index for index, has in enumerate(_has_nul(table.column(name))) if has]
        found |= dict.fromkeys(rows, str(name))
    return found


def _has_nul(column: Any) -> list[bool | None]:
    from pyarrow import compute, types

    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        has: list[bool | None] = compute.match_substring(column, "\0").to_pylist()
        return has
    if types.is_nested(kind) and not types.is_primitive(getattr(kind, "value_type", kind)):
        return ["\\u0000" in json.dumps(as_json(value)) for value in column.to_pylist()]
    return []


def rows_from_json(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Return the table of `schema` from rows of `row_as_json`; missing values are null.

    Arrow's ValueError if a value does not have its column's type.
    """
    import pyarrow as pa

    columns = [
        _column(
            [row.get(field.name) for row in rows], getattr(field.type, "storage_type", field.type)
        )
        for field in schema
    ]
    return pa.table(dict(zip(schema.names, columns, strict=True)))


def _column(values: list[Any], kind: Any) -> Any:
    import pyarrow as pa

    return pa.array([_restored(value, kind) for value in values], kind)


def _restored(value: Any, kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if value is None or isinstance(value, bool):
        return value
    if types.is_dictionary(kind):
        return _restored(value, kind.value_type)
    if isinstance(value, list):
        inner = kind.value_type if hasattr(kind, "value_type") else kind
        return [_restored(each, inner) for each in value]
    if not isinstance(value, str) or types.is_string(kind) or types.is_large_string(kind):
        return value
    if types.is_floating(kind):
        return float(value)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return base64.b64decode(value)
    return pa.scalar(value).cast(kind).as_py()
