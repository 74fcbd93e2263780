"""Raw mutation of known inputs: what a structure would never produce."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_TOKENS = (
    b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"-1", b"0", b"1e999", b"9" * 40,
    b"..", b"/", b"\\", b"%2e%2e/", b"null", b"true", b"[", b"{", b"[[[[[[[[", b'"', b"\r\n",
    b"\xc3\x28", b"\xed\xa0\x80", b"\x1b[2J", b"NaN",
)  # fmt: skip
_NUMBER = re.compile(rb"\d+")
_NUMBERS = (b"0", b"-1", b"1", b"4294967296", b"18446744073709551616", b"1e400", b"0.5")
_MAX_BYTES = 1 << 16


def mutated(rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """One to four changes of one of the `pool`."""
    data = rng.choice(pool)
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_CHANGES)(rng, data, pool)
    return data[:_MAX_BYTES]


def _flip(rng: random.Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _end(rng: random.Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _repeat(rng: random.Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[start:end] * rng.choice((2, 3, 50)) + data[end:]


def _insert(rng: random.Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_TOKENS) + data[at + rng.choice((0, 0, 1, 4)) :]


def _renumber(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return _flip(rng, data, pool)
    number = rng.choice(found)
    return data[: number.start()] + rng.choice(_NUMBERS) + data[number.end() :]


def _splice(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    other = rng.choice(pool)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


_CHANGES = (_flip, _flip, _cut, _end, _repeat, _insert, _insert, _renumber, _splice)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64)))
