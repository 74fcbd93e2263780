"""Requests that are alike but for the numbers in their JSON.

A frame is all the bytes of a request but its content's length and the insides of its arrays
named `data`. Where only these differ nothing else is parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

# What is longer is not for the event loop, or at least not together with others.
MOST_BYTES = 64 << 10
_KEPT_BYTES = 4096
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n)", re.IGNORECASE)
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[([^]\["{]*)\]')


class Frame:
    """`start` goes up to the content's length; `first` from there to the first number.

    Each of `others` begins with the bracket that ends an array, and goes to the next number
    or to the end.
    """

    __slots__ = ("_fixed", "first", "others", "start")

    def __init__(self, start: bytes, first: bytes, others: Sequence[bytes]) -> None:
        self.start = start
        self.first = first
        self.others = tuple(others)
        # What is there of the body already is no part of what its length is written in.
        self._fixed = len(start) + first.index(b"\r\n\r\n") + 4

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for equal frames."""
        return (self.start, self.first, *self.others)

    def cut(self, data: bytes) -> tuple[int, list[slice]] | None:
        """The body's length, and where each of the arrays is if `data` has this frame.

        With its brackets. Neither quotes nor other closing brackets are in it: that could be
        anything else, but never change what the frame means.
        """
        if len(data) > MOST_BYTES or not data.startswith(self.start):
            return None
        length = _content_length(len(data) - self._fixed)
        if length is None:
            return None
        size, digits = length
        first = digits + self.first
        at = len(self.start)
        if not data.startswith(first, at):
            return None
        at += len(first)
        places = []
        for piece in self.others:
            end = data.find(b"]", at)
            if end < 0 or not data.startswith(piece, end) or data.find(b'"', at, end) >= 0:
                return None
            places.append(slice(at - 1, end + 1))
            at = end + len(piece)
        return (size, places) if at == len(data) else None


def find_frame(data: bytes, body: int) -> Frame | None:
    """The frame of the whole request `data`, whose body begins at `body`; None if it has none.

    That its arrays are the inputs' is still to be proved: by what `fill` makes.
    """
    lengths = list(_LENGTH.finditer(data, 0, body - 2))
    spans = [match.span(1) for match in _DATA.finditer(data, body)]
    if len(lengths) != 1 or not spans or len(data) > MOST_BYTES:
        return None
    begin, end = lengths[0].span(1)
    edges = [end, *(edge for span in spans for edge in span), len(data)]
    first, *others = [data[start:stop] for start, stop in list(pairwise(edges))[::2]]
    frame = Frame(data[:begin], first, others)
    return frame if sum(map(len, frame.key)) <= _KEPT_BYTES else None


def fill(frame: Frame, values: Sequence[bytes]) -> bytes:
    """The body of a request of this frame, with `values` in its arrays."""
    _, _, opening = frame.first.partition(b"\r\n\r\n")
    pairs = zip(values, frame.others, strict=True)
    return b"".join([opening, *(piece for pair in pairs for piece in pair)])


@lru_cache(4096)
def _content_length(rest: int) -> tuple[int, bytes] | None:
    """The number that takes `rest` bytes together with the digits it is written in."""
    for count in range(1, len(str(MOST_BYTES)) + 1):
        digits = b"%d" % max(0, rest - count)
        if len(digits) == count and rest > count:
            return rest - count, digits
    return None
