"""JSON bodies, read strictly: limits before anything is built, and no key twice.

NaN, infinities, lone surrogates and bytes that are not UTF-8 are no JSON, and nesting
ends at the parser's 1024 levels. A body of small values takes some thirty times its size
as objects, so their number is bounded before they are made.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from bundle.errors import ErrorCode, MlctlError
from services.protocol.wire import invalid, shown

# About 250 MB as Python's numbers; more should come as binary data anyway.
MAX_VALUES = 1 << 23
# Objects and keys together. Far above what a request needs, and each costs the event loop
# a microsecond.
MAX_OBJECTS = 1 << 16
_OPENING_AND_NEXT = b",[{"
# Below this the whole is parsed at once, which takes about a millisecond.
_LONG_BYTES = 64 << 10
_PIECE_BYTES = 32 << 10
_NAME = b'"data"'
_OPENING = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
# What stands for them in the parsed document; no caller can know it.
_TOKEN = os.urandom(16).hex()


def parse_object(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`; INVALID_INPUT if it is not one or has a key twice.

    PAYLOAD_TOO_LARGE if it has more values than `MAX_VALUES`, or a great many objects.
    """
    check_values(content)
    if content.count(b"{") + content.count(b":") > MAX_OBJECTS:
        _check_objects(content)
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not valid JSON (at character {error.pos})") from None
    if not isinstance(document, dict):
        raise invalid("the body is not a JSON object")
    # Every key has a colon: as many as there are keys means that the parser dropped none.
    if content.count(b":") != _count_keys(document):
        _check_keys(content)
    return document


def check_values(content: bytes) -> None:
    """PAYLOAD_TOO_LARGE if `content` has more values than `MAX_VALUES`."""
    if len(content) <= MAX_VALUES:
        return
    array = np.frombuffer(content, np.uint8)
    # Each value but the outermost follows one of these; those within texts only add to it.
    found = sum(int(np.count_nonzero(array == mark)) for mark in _OPENING_AND_NEXT)
    if found > MAX_VALUES:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the JSON has about {found} values, the limit is {MAX_VALUES}",
            "Send the tensors as binary data, or fewer rows in each request.",
        )


def _check_objects(content: bytes) -> None:
    # A pair of backslashes and an escaped quote end no text; in this order what is left of
    # the quotes begins and ends texts in turn.
    bare = content.replace(rb"\\", b"").replace(rb"\"", b"")
    array = np.frombuffer(bare, np.uint8)
    outside = np.cumsum(array == ord('"'), dtype=np.uint8) & 1 == 0
    found = int(np.count_nonzero(outside & ((array == ord("{")) | (array == ord(":")))))
    if found > MAX_OBJECTS:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the JSON has {found} objects and keys, the limit is {MAX_OBJECTS}",
            "The protocol has one object for each tensor; send BYTES as texts.",
        )


def _count_keys(document: dict[str, Any]) -> int:
    """How many keys are where the protocol has objects; fewer than all if there are others."""
    found = len(document)
    for value in document.values():
        if type(value) is dict:
            found += len(value)
        elif type(value) is list:
            for item in value:
                if type(item) is not dict:
                    break
                found += len(item)
                parameters = item.get("parameters")
                if type(parameters) is dict:
                    found += len(parameters)
    return found


def _check_keys(content: bytes) -> None:
    """Look at each object's keys. Slow, and needed only for colons in texts or a key twice."""
    try:
        json.loads(content, object_pairs_hook=_distinct)
    except RecursionError:
        raise invalid("the body is nested too deep") from None


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise invalid(f"key {shown(name)} is given twice in one object")
        names.add(name)


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
