"""The id of an infer call in protobuf's bytes, found without a parser.

ModelInferRequest and ModelInferResponse both begin with the model's name, its version and the
id, each only if it is not empty. In messages that are written in another order none is found.
"""

from __future__ import annotations

from functools import lru_cache

_NAME, _VERSION, _ID = 0x0A, 0x12, 0x1A
_ID_TAG = bytes([_ID])
# What an id's field has before the id, which has fewer than so many bytes; and a longer one's.
_SHORT, _SHORT_HEAD, _LONG_HEAD = 0x80, 2, 3


@lru_cache(maxsize=1024)
def field_head(tag: bytes, size: int) -> bytes:
    """What is before a field's bytes: the length has seven bits a byte, the lowest first."""
    found = bytearray(tag)
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    found.append(size)
    return bytes(found)


def cut_id(message: bytes, at: int = 0) -> tuple[int, int]:
    """Where the field of the id begins and ends in a message that begins at `at`.

    Both are where it would be if it has none. In what is no message they may be anywhere.
    """
    start = _end(message, _end(message, at, _NAME), _VERSION)
    return start, _end(message, start, _ID)


def is_id(field: bytes) -> bool:
    """Whether this is an id's whole field, as protobuf itself writes it.

    Only of ASCII, as most are: protobuf checks what others are written in.
    """
    head = _head_bytes(field)
    size = len(field) - head
    if size < 1 or not field[head:].isascii():
        return False
    expected = field_head(_ID_TAG, size)
    return len(expected) == head and field.startswith(expected)


def id_in(field: bytes) -> str:
    """The id in its field, or in the none of a message without."""
    return field[_head_bytes(field) :].decode("ascii")


def _head_bytes(field: bytes) -> int:
    return _SHORT_HEAD if len(field) < _SHORT_HEAD + _SHORT else _LONG_HEAD


def _end(message: bytes, at: int, tag: int) -> int:
    """Where the field that begins at `at` ends, if it has the tag and a length below 16 KiB."""
    head = message[at : at + _LONG_HEAD]
    if len(head) < _SHORT_HEAD or head[0] != tag:
        return at
    if head[1] < _SHORT:
        return at + _SHORT_HEAD + head[1]
    if len(head) < _LONG_HEAD or head[2] >= _SHORT:
        return at
    return at + _LONG_HEAD + (head[1] & 0x7F | head[2] << 7)
