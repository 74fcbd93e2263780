"""Convert the values of Arrow tables to JSON.

Values without a JSON form are text: NaN and infinities by name, times in ISO 8601, decimals as
digits, bytes in base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 2_000


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


def row_text(table: pa.Table, index: int) -> str:
    """Return the beginning of a row as a JSON object; bytes that are no UTF-8 are replaced."""
    values = {name: _shown(table.column(name)[index]) for name in table.column_names}
    return json.dumps(values, ensure_ascii=False)[:_SHOWN]


def _shown(scalar: Any) -> object:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # text that is no UTF-8, or a time out of Python's range
        value = scalar.as_buffer().to_pybytes() if hasattr(scalar, "as_buffer") else str(scalar)
    return value.decode(errors="replace") if isinstance(value, bytes) else as_json(value)


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
