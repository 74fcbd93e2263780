"""Messages of NATS: keys and binary headers in the text headers that the protocol has."""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import Any

from services.stream.base import Headers, Message, Outgoing

_KEY = "mlctl-key"
_BINARY = "-b64"
_ID = "Nats-Msg-Id"
# The library has one header of a name; the second one of it is called name#2.
_REPEATED = re.compile(r"#[0-9]+$")
_ODD = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


def read_message(stream: str, message: Any) -> Message:
    """The message that the server delivered; its offset is the sequence in `stream`."""
    # $JS.ACK.stream.consumer.delivered.sequence.of-consumer.time.pending, or with two names more
    # after $JS.ACK: the domain and the account.
    parts = message.reply.split(".")
    at = 7 if len(parts) > 9 else 5
    offset, time_ms = int(parts[at]), int(parts[at + 2]) // 1_000_000
    if not message.headers:
        return Message(stream, offset, message.data, None, (), time_ms)
    key, headers = _read_headers(message.headers)
    return Message(stream, offset, message.data, key, headers, time_ms)


def _read_headers(found: dict[str, str]) -> tuple[bytes | None, Headers]:
    key: bytes | None = None
    headers = []
    for raw_name, text in found.items():
        if raw_name.startswith("Nats-"):
            continue  # the protocol's own
        name, value = raw_name, text.encode(errors="surrogateescape")
        if name.endswith(_BINARY):
            try:
                value = base64.b64decode(value, validate=True)
                name = name.removesuffix(_BINARY)
            except binascii.Error:
                pass  # someone's own header, whose name happens to end so
        name = _REPEATED.sub("", name)
        if name == _KEY:
            key = value
        else:
            headers.append((name, value))
    return key, tuple(headers)


class HeaderWriter:
    """Headers as the protocol has them; those of a batch are often the same."""

    def __init__(self) -> None:
        self._last: Headers = ()
        self._shared: dict[str, str] = {}

    def headers(self, subject: str, message: Outgoing) -> dict[str, str] | None:
        """With what the server knows a message by that comes again; None if there are none."""
        _value, key, headers, identity = message
        if headers is not self._last:
            self._last, self._shared = headers, _texts(headers)
        if not identity and key is None:
            return self._shared or None
        found = dict(self._shared)
        if identity:
            # One stream may hold several subjects, for which the same source is answered.
            found[_ID] = f"{subject}/{identity}"
        if key is not None:
            name, text = _text(_KEY, key)
            found[name] = text
        return found


def _texts(headers: Headers) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, header in enumerate(headers, 1):
        name, text = _text(*header)
        if name in found:
            name, text = _text(f"{header[0]}#{number}", header[1])
        found[name] = text
    return found


def _text(name: str, value: bytes) -> tuple[str, str]:
    if value.isascii():
        text = value.decode("ascii")
        if text.isprintable() and text == text.strip():
            return _name(name), text
    return _name(name) + _BINARY, base64.b64encode(value).decode()


@lru_cache(256)
def _name(name: str) -> str:
    return _ODD.sub("_", name)
