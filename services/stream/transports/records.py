"""Many messages as a few columns of bytes, so that a log deals with them at once. Pure.

A column is the sizes of its items (int32, little endian, -1 for None) and then the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise, repeat
from operator import itemgetter

import numpy as np

from services.stream.base import Headers

_SIZE = np.dtype("<i4")
_NAME, _VALUE = itemgetter(0), itemgetter(1)
# Headers: all messages have the same names in the same order, or they do not. A column of
# values: one for all messages, or one for each.
_ALIKE, _MIXED, _SAME, _EACH = b"a", b"m", b"s", b"e"


def pack(items: Sequence[bytes]) -> bytes:
    """The column of `items`."""
    return np.array([*map(len, items)], _SIZE).tobytes() + b"".join(items)


def unpack(column: bytes, count: int) -> list[bytes]:
    """The `count` items of a column."""
    sizes = np.frombuffer(column, _SIZE, count)
    start = sizes.nbytes
    ends = (sizes.cumsum(dtype=np.int64) + start).tolist()
    return [column[first:last] for first, last in pairwise((start, *ends))]


def pack_keys(keys: Sequence[bytes | None]) -> bytes | None:
    """The keys of all messages; None where no message has one."""
    if None not in keys:
        return pack(keys)  # type: ignore[arg-type]
    if keys.count(None) == len(keys):
        return None
    sizes = [-1 if key is None else len(key) for key in keys]
    return np.array(sizes, _SIZE).tobytes() + b"".join([key for key in keys if key])


def unpack_keys(column: bytes | None, count: int) -> Sequence[bytes | None]:
    """What pack_keys packed, for `count` messages."""
    if column is None:
        return [None] * count
    sizes = np.frombuffer(column, _SIZE, count)
    absent = sizes < 0
    if not absent.any():
        return unpack(column, count)
    present = np.maximum(sizes, 0)
    keys: list[bytes | None] = [*unpack(present.tobytes() + column[sizes.nbytes :], count)]
    for index in np.flatnonzero(absent).tolist():
        keys[index] = None
    return keys


def pack_headers(every: Sequence[Headers]) -> bytes | None:
    """The headers of all messages; None where no message has any.

    Names are stored once where all messages have the same, and so is a value.
    """
    if not any(every):
        return None
    columns = [*zip(*every, strict=False)]
    names = [column[0][0] for column in columns]
    alike = set(map(len, every)) == {len(names)} and all(
        {*map(_NAME, column)} == {name} for name, column in zip(names, columns, strict=True)
    )
    if not alike:
        return _MIXED + pack([_packed_one(headers) for headers in every])
    parts = [pack([name.encode() for name in names])]
    for column in columns:
        values = [*map(_VALUE, column)]
        same = values.count(values[0]) == len(values)
        parts.append(_SAME + values[0] if same else _EACH + pack(values))
    return _ALIKE + _width(len(names)) + pack(parts)


def unpack_headers(blob: bytes | None, count: int) -> Sequence[Headers]:
    """What pack_headers packed, for `count` messages."""
    if blob is None:
        return [()] * count
    if blob[:1] == _MIXED:
        return [_unpacked_one(part) for part in unpack(blob[1:], count)]
    width = int.from_bytes(blob[1:3], "little")
    names, *parts = unpack(blob[3:], width + 1)
    columns = []
    for name, part in zip(unpack(names, width), parts, strict=True):
        same = part[:1] == _SAME
        values = repeat(part[1:], count) if same else unpack(part[1:], count)
        columns.append([*zip(repeat(name.decode(), count), values, strict=True)])
    return [*zip(*columns, strict=True)]


def _packed_one(headers: Headers) -> bytes:
    flat = chain.from_iterable((name.encode(), value) for name, value in headers)
    return _width(len(headers)) + pack([*flat])


def _unpacked_one(part: bytes) -> Headers:
    width = int.from_bytes(part[:2], "little")
    flat = unpack(part[2:], 2 * width)
    return tuple((name.decode(), value) for name, value in zip(flat[::2], flat[1::2], strict=True))


def _width(count: int) -> bytes:
    return count.to_bytes(2, "little")
