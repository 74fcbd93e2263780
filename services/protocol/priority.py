"""The priority of a request: high or normal."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from mlctl.core.errors import ErrorCode, MlctlError

# The HTTP header and gRPC metadata key that set the priority; they override the body's parameter.
PRIORITY_HEADER = "mlctl-priority"


class Priority(StrEnum):
    """Which queue a request waits in."""

    HIGH = "high"
    NORMAL = "normal"


# Triton's clients send a number: 0 for the default, 1 for the highest level.
_SPELLINGS = {
    "high": Priority.HIGH,
    "normal": Priority.NORMAL,
    "1": Priority.HIGH,
    "0": Priority.NORMAL,
    "2": Priority.NORMAL,
}


def parse_priority(value: object) -> Priority:
    """Parse a `priority` parameter: high, normal, or Triton's 0, 1, 2; raise INVALID_INPUT."""
    priority = None if isinstance(value, bool) else _SPELLINGS.get(str(value).lower())
    if priority is None:
        raise MlctlError(ErrorCode.INVALID_INPUT, "priority must be high or normal")
    return priority


def priority_of_headers(values: Iterable[str]) -> Priority | None:
    """Return the priority that the values of all `PRIORITY_HEADER` headers set, None without any.

    Equal values count once. INVALID_INPUT for an unknown value, or for values that differ.
    """
    distinct = list(dict.fromkeys(values))
    return parse_priority(", ".join(distinct)) if distinct else None
