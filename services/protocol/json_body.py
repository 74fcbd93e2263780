"""Parse JSON bodies strictly: limits before objects are created, and no duplicate keys.

NaN, infinities, lone surrogates and bytes that are not UTF-8 are rejected; the parser's limit is
1024 levels of nesting. Small values take about thirty times their size as objects, so their number
is limited before they are created. Long arrays of numbers are cut out of the body and parsed in
parts, because the parser holds the GIL: millions of numbers would stop the server for a second.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.wire import invalid, shown

# About 250 MB as Python objects; larger tensors should be binary data anyway.
MAX_VALUES = 1 << 23
# Objects and keys together: far more than a request needs. Each takes a microsecond.
MAX_OBJECTS = 1 << 16
_OPENING_AND_NEXT = b",[{"
# A smaller body is parsed in one call, which takes about a millisecond.
_LONG_BYTES = 64 << 10
_PIECE_BYTES = 32 << 10
_NAME = b'"data"'
_OPENING = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
# Placeholder of a long array in the parsed document; callers cannot guess it.
_TOKEN = os.urandom(16).hex()


def parse_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; INVALID_INPUT if it is malformed or has a duplicate key.

    PAYLOAD_TOO_LARGE above `MAX_VALUES` values or `MAX_OBJECTS` objects and keys.
    """
    document = parse_document(content)
    if not isinstance(document, dict):
        raise invalid("the body is not a JSON object")
    return document


def parse_document(content: bytes) -> dict[str, Any] | list[Any]:
    """Parse a JSON object or array with the checks of `parse_object`."""
    check_values(content)
    if content.count(b"{") + content.count(b":") > MAX_OBJECTS:
        _check_objects(content)
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not valid JSON (at character {error.pos})") from None
    if not isinstance(document, dict | list):
        raise invalid("the body is not a JSON object")
    # Every key has a colon. If there are as many colons as keys, no key was a duplicate.
    if content.count(b":") != _count_keys(document):
        _check_keys(content)
    return document


def check_values(content: bytes) -> None:
    """Raise PAYLOAD_TOO_LARGE if `content` has more than `MAX_VALUES` values."""
    if len(content) <= MAX_VALUES:
        return
    array = np.frombuffer(content, np.uint8)
    # Each value but the outermost follows one of these characters; strings only add to the count.
    found = sum(int(np.count_nonzero(array == mark)) for mark in _OPENING_AND_NEXT)
    if found > MAX_VALUES:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the JSON has about {found} values (limit {MAX_VALUES})",
            "Send the tensors as binary data, or fewer rows in each request.",
        )


def _check_objects(content: bytes) -> None:
    # Escaped backslashes and quotes do not end a string. After removing them in this order, the
    # remaining quotes begin and end strings in turn.
    bare = content.replace(rb"\\", b"").replace(rb"\"", b"")
    array = np.frombuffer(bare, np.uint8)
    outside = np.cumsum(array == ord('"'), dtype=np.uint8) & 1 == 0
    found = int(np.count_nonzero(outside & ((array == ord("{")) | (array == ord(":")))))
    if found > MAX_OBJECTS:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the JSON has {found} objects and keys (limit {MAX_OBJECTS})",
            "The protocol has one object per tensor; send BYTES as strings.",
        )


def _count_keys(document: dict[str, Any] | list[Any]) -> int:
    """Count the keys of objects of the protocol; fewer than all keys if there are other objects."""
    if isinstance(document, list):
        return sum(len(row) for row in document if type(row) is dict)
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
    """Check each object's keys. Slow; needed only for colons in strings and duplicate keys."""
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
    """The elements of a flat JSON array of numbers: `content` from `start` to `end`."""

    __slots__ = ("_content", "_end", "_start")

    def __init__(self, content: bytes, start: int, end: int) -> None:
        self._content = content
        self._start = start
        self._end = end

    @property
    def max_count(self) -> int:
        """The maximum number of values in that many bytes."""
        return (self._end - self._start + 1) // 2

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the values, a few thousand at a time; INVALID_INPUT if they are not JSON."""
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
    """Parse a request like `parse_object`; long flat data of its inputs become `Numbers`."""
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
        raise invalid("a long array is named 'data' outside the inputs")
    return document


def _cut(content: bytes) -> tuple[bytes, dict[str, Numbers]]:
    """Replace each long array of numbers by a placeholder; return the arrays by placeholder."""
    parts: list[bytes] = []
    cut: dict[str, Numbers] = {}
    done = start = 0
    while (found := content.find(_NAME, start)) >= 0:
        start = found + len(_NAME)
        opening = _OPENING.match(content, start)
        # After a backslash the quote is inside a string. It cannot end a string here: then the
        # rest would not be JSON.
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
    """Whether there are no strings, arrays or objects."""
    return all(content.find(mark, begin, end) < 0 for mark in (b'"', b"[", b"{"))
