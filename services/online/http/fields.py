"""The headers of a request by name."""

from __future__ import annotations

from collections.abc import Sequence


def fields_of(lines: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers in `lines`, whose names are in lower case.

    Several lines of one name are joined by commas (RFC 9110, 5.3), equal ones count once. Where one
    value is expected, two different ones are so rejected instead of using either.
    """
    fields = dict(lines)
    if len(fields) == len(lines):
        return fields
    found: dict[bytes, dict[bytes, None]] = {}
    for name, value in lines:
        found.setdefault(name, {})[value] = None
    return {name: b", ".join(values) for name, values in found.items()}
