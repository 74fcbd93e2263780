"""Read what a rejection needs of a request without a parse, where the request's form is usual.

In overload most requests are rejected, and a parse would cost more than the rejection.
"""

from __future__ import annotations

import re

_MAX_DIGITS = 9
_LENGTH, _JSON_LENGTH = b"content-length", b"inference-header-content-length"
_CONNECTION = b"connection"
_USUAL = frozenset({_LENGTH, _JSON_LENGTH, _CONNECTION, b"x-request-id", b"traceparent"})
# Fields that change who sends a request, its priority or what its body takes.
CHANGES_MEANING = frozenset({b"content-encoding", b"expect", b"authorization", b"mlctl-priority"})
# Fields that change where a request ends.
_UNUSUAL = (*CHANGES_MEANING, b"transfer-encoding", b"upgrade", b"proxy-connection")
# A head that another server may read differently (RFC 9112, section 11.2) does not match.
_HEAD = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\r\n\0]*+\r\n)++")
# One pass over the head takes a fifth of the time of a search for each name.
_FIELDS = re.compile(rb"\n(?i:(%b)):[ \t]*([^\r\n]*)" % b"|".join([*_USUAL, *_UNUSUAL]))


def read_unparsed(
    request: bytes, starts: tuple[bytes, ...]
) -> tuple[int, dict[bytes, bytes]] | None:
    """Return the size of the body in bytes, and the headers that matter, of one whole request.

    Its first line must be one of `starts`. None for anything else, such as a part of a request, two
    of them, an unusual header, or a body that may name a priority.
    """
    end = request.find(b"\r\n\r\n")
    if end < 0 or not request.startswith(starts):
        return None
    found = _FIELDS.findall(request, 0, end)
    fields = {name.lower(): value for name, value in found}
    length = fields.get(_LENGTH, b"")
    if len(fields) != len(found) or not length.isdigit() or len(length) > _MAX_DIGITS:
        return None
    body, size = end + 4, int(length)
    if body + size != len(request) or not _USUAL.issuperset(fields):
        return None
    if not _HEAD.fullmatch(request, request.index(b"\n") + 1, end + 2):
        return None
    if _CONNECTION in fields and fields[_CONNECTION].lower() != b"keep-alive":
        return None
    stop = len(request)
    if _JSON_LENGTH in fields:
        length = fields[_JSON_LENGTH]
        if not length.isdigit() or len(length) > _MAX_DIGITS:
            return None
        stop = body + int(length)
    if request.find(b"priority", body, stop) >= 0:
        return None
    return size, fields
