"""Long runs of numbers in a JSON body, cut out before it is parsed and read piece by piece.

The parser makes an object of each number and lets no other thread run meanwhile: millions of
them would stop the server for as long as a second. Read in pieces, they stop it for
about a millisecond at a time, and take little more memory than the tensor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import orjson

from services.protocol.jsonbody import check_values, parse_object
from services.protocol.wire import invalid

# Below this the whole is parsed at once, which takes about a millisecond.
_LONG_BYTES = 64 << 10
_PIECE_BYTES = 32 << 10
_NAME = b'"data"'
_OPENING = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
# What stands for them in the parsed document; no caller can know it.
_TOKEN = os.urandom(16).hex()


class Numbers:
    """The inside of one flat JSON array: `content` from `start` to `end`."""

    __slots__ = ("_content", "_end", "_start")

    def __init__(self, content: bytes, start: int, end: int) -> None:
        self._content = content
        self._start = start
        self._end = end

    @property
    def most(self) -> int:
        """How many values there can be."""
        return (self._end - self._start + 1) // 2

    def pieces(self) -> Iterator[list[Any]]:
        """The values, a few thousand at a time; INVALID_INPUT if they are no JSON."""
        start = self._start
        while start <= self._end:
            end = self._content.find(b",", start + _PIECE_BYTES, self._end)
            end = self._end if end < 0 else end
            try:
                values = orjson.loads(b"[%b]" % self._content[start:end])
            except orjson.JSONDecodeError:
                values = []
            if not values:
                raise invalid("the body is not valid JSON (in the data of a tensor)")
            yield values
            start = end + 1


def parse_request(content: bytes) -> dict[str, Any]:
    """What `parse_object` makes of a request; long flat data of its inputs are `Numbers`."""
    if len(content) <= _LONG_BYTES:
        return parse_object(content)
    check_values(content)
    rest, cut = _cut(content)
    document = parse_object(rest)
    inputs = document.get("inputs")
    for tensor in inputs if isinstance(inputs, list) else ():
        data = tensor.get("data") if isinstance(tensor, dict) else None
        if isinstance(data, str) and data in cut:
            tensor["data"] = cut.pop(data)
    if cut:
        raise invalid("a long array is named 'data' where the protocol has none")
    return document


def _cut(content: bytes) -> tuple[bytes, dict[str, Numbers]]:
    """`content` with a text in place of each long run of numbers, and these by the texts."""
    parts: list[bytes] = []
    cut: dict[str, Numbers] = {}
    done = start = 0
    while (found := content.find(_NAME, start)) >= 0:
        start = found + len(_NAME)
        opening = _OPENING.match(content, start)
        # After a backslash the quote is one in a text. The end of a text it cannot be: no
        # name follows that, and what is left is no JSON either.
        if opening is None or content[found - 1 : found] == b"\\":
            continue
        begin = opening.end()
        end = content.find(b"]", begin)
        if end - begin < _LONG_BYTES or not _is_flat(content, begin, end):
            continue
        text = f"{_TOKEN}.{len(cut)}"
        cut[text] = Numbers(content, begin, end)
        parts.append(b'%b"%b"' % (content[done : begin - 1], text.encode()))
        done = start = end + 1
    return b"".join([*parts, content[done:]]), cut


def _is_flat(content: bytes, begin: int, end: int) -> bool:
    """Whether neither texts nor arrays nor objects are there."""
    return all(content.find(mark, begin, end) < 0 for mark in (b'"', b"[", b"{"))
