"""The size and single headers of a request without a parse, where its form is the usual one.

In overload most requests are rejected, and a parse would cost more than the rejection.
"""

from __future__ import annotations

from collections.abc import Collection

_START, _VERSION = b"POST ", b" HTTP/1.1\r\n"
_LENGTH = b"\r\ncontent-length:"
_MAX_DIGITS = 9
# Fields that change where a request ends, its priority, what its body takes or the connection.
_UNUSUAL = (
    b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"close", b"authorization",
    b"priority",
)  # fmt: skip


def whole_request_size(request: bytes, targets: Collection[bytes]) -> int | None:
    """Return the size of the body if `request` is exactly one usual POST to one of `targets`.

    None for anything else, such as a part of a request, two of them or an unusual header.
    """
    line = request.find(b"\r\n")
    version = line + 2 - len(_VERSION)
    if not request.startswith(_START) or request[version : line + 2] != _VERSION:
        return None
    end = request.find(b"\r\n\r\n", line)
    if end < 0 or request[len(_START) : version] not in targets:
        return None
    head = request[line:end].lower()
    at = head.find(_LENGTH)
    stop = head.find(b"\r\n", at + 2)
    digits = head[at + len(_LENGTH) : stop if stop >= 0 else len(head)].strip(b" \t")
    if at < 0 or head.count(_LENGTH) > 1 or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    size = int(digits)
    if end + 4 + size != len(request) or any([name in head for name in _UNUSUAL]):  # noqa: C419 - faster
        return None
    return size


def header_value(request: bytes, name: bytes) -> bytes | None:
    """Return the value of a header that `request` has in lower or usual case, or None."""
    end = request.find(b"\r\n\r\n") + 2  # the body is no header
    for spelled in (name, b"-".join([part.capitalize() for part in name.split(b"-")])):
        start = request.find(b"\r\n%b:" % spelled, 0, end)
        if start >= 0:
            start += len(name) + 3
            return request[start : request.find(b"\r\n", start)].strip(b" \t")
    return None
