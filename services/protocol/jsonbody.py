"""JSON bodies, read strictly: limits before anything is built, and no key twice.

NaN, infinities, lone surrogates and bytes that are not UTF-8 are no JSON, and nesting
ends at the parser's 1024 levels. A body of small values takes some thirty times its size
as objects, so their number is bounded before they are made.
"""

from __future__ import annotations

import json
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
