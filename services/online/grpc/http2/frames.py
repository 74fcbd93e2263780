"""HTTP/2 frames (RFC 9113, section 6): their kinds, flags and errors, and those that we send.

Kinds and flags are plain integers: an enum's member takes several times as long to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

# Length and kind are one number: the length's three bytes, and the kind's one.
FRAME_HEAD: Final = Struct(">LBL")
NUMBER: Final = Struct(">L")
_SETTING: Final = Struct(">HL")
_GOAWAY: Final = Struct(">LL")
MAX_STREAM: Final = (1 << 31) - 1
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME_BYTES: Final = 16384


class SettingId(IntEnum):
    """What a side tells the other of itself, RFC 9113 (6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Reason(IntEnum):
    """Why a stream or a connection ends, RFC 9113 (7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class BrokenError(Exception):
    """The client broke a rule in a way that ends its connection, for `reason`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Any frame; its payload is shorter than 2**24 bytes."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: Mapping[SettingId, int]) -> bytes:
    """Encode a SETTINGS frame."""
    pairs = [_SETTING.pack(name, value) for name, value in values.items()]
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """What the client tells of itself, in its order."""
    if len(payload) % _SETTING.size:
        raise BrokenError(Reason.FRAME_SIZE_ERROR, "a setting is cut off")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, size: int) -> bytes:
    """The client may send `size` bytes more: of a stream, or of all if that is 0."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(size))


def reset(stream: int, reason: int) -> bytes:
    """The stream ends at once."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(reason))


def goaway(last_stream: int, reason: int) -> bytes:
    """No stream after `last_stream` is answered."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream, reason))
