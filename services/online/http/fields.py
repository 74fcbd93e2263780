"""A request's headers by their names."""

from __future__ import annotations

from collections.abc import Sequence


def fields_of(lines: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers in `lines`, whose names are in lower case.

    Several lines of one name are one list (RFC 9110, 5.3), which where one value is wanted is
    none: whoever sends two that differ is refused, and not heard half. Equal ones are one.
    """
    fields = dict(lines)
    if len(fields) == len(lines):
        return fields
    found: dict[bytes, dict[bytes, None]] = {}
    for name, value in lines:
        found.setdefault(name, {})[value] = None
    return {name: b", ".join(values) for name, values in found.items()}
