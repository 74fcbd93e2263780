"""A message as one line of text and back. Pure.

A line is the message's value. Where that cannot be, or key and headers must stay, it is an
envelope: `{"mlctl":{"key":..., "headers":[[name, value]...]},"value":...}`, in which bytes
that are not UTF-8 are `{"base64":...}`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

import orjson

from services.stream.base import Headers, Outgoing

_MARK = b'{"mlctl":'


class Line(NamedTuple):
    """What a line says."""

    value: bytes
    key: bytes | None = None
    headers: Headers = ()


class Cutter:
    """Cuts blocks of bytes into lines. A line that has not ended is kept in pieces, not copied."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.waiting = 0  # bytes of the line that has not ended

    def cut(self, block: bytes) -> list[bytes]:
        """The lines that end in `block`, without their ends."""
        first, *others = block.split(b"\n")
        self._pieces.append(first)
        self.waiting += len(first)
        if not others:
            return []
        lines = [self.rest(), *others]
        last = lines.pop()
        self._pieces, self.waiting = [last], len(last)
        return lines

    def rest(self) -> bytes:
        """What is there of the line that has not ended."""
        return b"".join(self._pieces)


def to_line(message: Outgoing, *, whole: bool) -> bytes:
    """The line of `message` with its end; in an envelope if it must be `whole`."""
    value = message.value
    if not whole and value.strip() and b"\n" not in value and not value.startswith(_MARK):
        return value + b"\n"
    about: dict[str, Any] = {}
    if message.key is not None:
        about["key"] = _said(message.key)
    if message.headers:
        about["headers"] = [[name, _said(each)] for name, each in message.headers]
    return orjson.dumps({"mlctl": about, "value": _said(value)}) + b"\n"


def from_line(line: bytes) -> Line:
    """What `line`, without its end, says. One that only looks like an envelope is a value."""
    if not line.startswith(_MARK):
        return Line(line)
    try:
        document = orjson.loads(line)
        about = document["mlctl"]
        key = about.get("key")
        return Line(
            _meant(document["value"]),
            None if key is None else _meant(key),
            tuple((str(name), _meant(each)) for name, each in about.get("headers", ())),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return Line(line)


def _said(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _meant(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
