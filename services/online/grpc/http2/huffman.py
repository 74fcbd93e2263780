"""Huffman-coded strings of HPACK (RFC 7541, 5.2 and appendix B), decoded a byte at a time."""

from __future__ import annotations

from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)

from services.online.grpc.http2.frames import BrokenError, Reason


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
    """Return whether the text has no line end, tab or NUL and no space at an end, undecoded.

    Ten ones in a row are in the codes of those, and in few of others; the code of a space is
    010100. A text for which this is False may be valid.
    """
    bits = int.from_bytes(coded)
    bits //= (bits ^ bits + 1) + 1 >> 1  # without the ones at the end, which may be padding
    ones = bits & bits >> 1
    ones &= ones >> 2
    ones &= ones >> 4
    return not ones & ones >> 2 and bits & 0x3F != 0b010100 and coded[:1] not in b"PQRS"


def broken_block() -> BrokenError:
    """Return the error of a header block that cannot be decoded."""
    return BrokenError(Reason.COMPRESSION_ERROR, "a header block is broken")
