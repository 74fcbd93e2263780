"""Huffman-coded strings of HPACK (RFC 7541, 5.2 and appendix B), decoded a byte at a time."""

from __future__ import annotations

import re

from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)

from mlctl.services.online.grpc.http2.frames import BrokenError, Reason


class _HuffmanSteps(dict[int, tuple[int, bytes, bool]]):
    """The steps of the library's decoder by bytes, which has one of half a byte: made when needed.

    From the state in the upper bits and a byte to the next state in the same bits, the text
    between, and whether the string may end here.
    """

    def __missing__(self, key: int) -> tuple[int, bytes, bool]:
        state, flags, text = key >> 8, 0, bytearray()
        for half in (key >> 4 & 0xF, key & 0xF):
            state, flags, symbol = HUFFMAN_TABLE[state * 16 + half]
            if flags & HUFFMAN_FAIL:
                raise broken_block()
            if flags & HUFFMAN_EMIT_SYMBOL:
                text.append(symbol)
        step = self[key] = state << 8, bytes(text), bool(flags & HUFFMAN_COMPLETE)
        return step


_STEPS = _HuffmanSteps()
# The bits of codes with 5 to 8 of them, which letters and digits have, and up to 7 ones as padding;
# the code of a space is 010100.
_PLAIN = re.compile(
    "0b1(?!010100)(?:00[01]{3}|0100[01]|0101[01]{2}|011[01]{3}|100[01]{3}|1010[01]{2}|10110[01]"
    "|10111[01]{2}|110[01]{4}|1110[01]{3}|11110[01]{2}|111110[01]{2}|1111110[01])*+(?<!010100)1{0,7}"
).fullmatch


def decode_huffman(coded: bytes) -> bytes:
    """Return the text of a coded string; BrokenError if it is not one."""
    state, complete, text = 0, True, []
    for byte in coded:
        state, decoded, complete = _STEPS[state | byte]
        text.append(decoded)
    if not complete:
        raise broken_block()
    return b"".join(text)


def is_plain(coded: bytes) -> bool:
    """Return whether the string is valid, of common characters, and no space at an end, undecoded.

    One for which this is False may be valid.
    """
    return _PLAIN(bin(int.from_bytes(b"\1" + coded))) is not None


def broken_block() -> BrokenError:
    """Return the error of a header block that cannot be decoded."""
    return BrokenError(Reason.COMPRESSION_ERROR, "a header block is broken")
