"""W3C trace context: the caller's span (`traceparent`) and tracing systems' data (`tracestate`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_TODAYS = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
is_valid = re.compile(rb"(?!ff)[0-9a-f]{2}%b(?:-.*)?" % _TODAYS).fullmatch
_LINES = re.compile(rb"(?:00%b\n)*" % _TODAYS)
TRACE_ID, _SPAN_ID, _FLAGS = slice(3, 35), slice(36, 52), slice(53, 55)
_MEMBER = re.compile(
    r"[ \t]*([a-z][_0-9a-z*/-]{0,255}|[a-z0-9][_0-9a-z*/-]{0,240}@[a-z][_0-9a-z*/-]{0,13})"
    r"=([ -+\--<>-~]{0,255}[!-+\--<>-~])[ \t]*"
)
_MAX_MEMBERS = 32
_FLAGS_END = 55
# The last digit of the flags, when their lowest bit says that the caller records the trace.
_SAMPLED_DIGITS = frozenset(b"13579bdf")


class TraceParent(NamedTuple):
    """The caller's span, as its `traceparent` header names it."""

    trace_id: int
    span_id: int
    flags: int


def parse_traceparent(header: bytes | None) -> TraceParent | None:
    """Return what a W3C traceparent header says; None if there is none, or it is not valid."""
    if header is None or not is_valid(header):
        return None
    return TraceParent(*(int(header[part], 16) for part in (TRACE_ID, _SPAN_ID, _FLAGS)))


def parse_tracestate(header: bytes | None) -> list[tuple[str, str]]:
    """Return the members of a W3C tracestate header; none if there is none, or one is not valid."""
    members = [] if header is None else header.decode("latin-1").split(",")
    found = [match for member in members if (match := _MEMBER.fullmatch(member))]
    keys = {match[1] for match in found}
    if not len(keys) == len(found) == sum(1 for member in members if member.strip(" \t")):
        return []
    return [] if len(found) > _MAX_MEMBERS else [(match[1], match[2]) for match in found]


def trace_id(header: bytes) -> str | None:
    """Return the trace's id as the header spells it; None if the header is not valid."""
    return header[TRACE_ID].decode() if is_valid(header) else None


def plain_trace_ids(headers: Sequence[bytes | None]) -> Sequence[str] | None:
    """Return the trace ids if all headers are valid and of version 00, else None.

    Such a header has nothing after the flags. One check of many takes half the time of many checks.
    No header has a line end.
    """
    lines = b"\n".join([each or b"" for each in headers]) + b"\n"
    if _LINES.fullmatch(lines) is None:
        return None
    text = lines.decode()
    first, last, width = TRACE_ID.start, TRACE_ID.stop, _FLAGS_END + 1
    return [text[at + first : at + last] for at in range(0, len(text), width)]


def is_sampled(header: bytes | None) -> bool:
    """Return whether the client samples its trace; only one digit is read."""
    return (
        header is not None
        and len(header) >= _FLAGS_END
        and header[_FLAGS_END - 1] in _SAMPLED_DIGITS
    )
