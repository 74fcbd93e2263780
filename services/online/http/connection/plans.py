"""What is the same in the answers to those who asked alike, made once for a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from orjson import OPT_SERIALIZE_NUMPY, dumps

from services.online.batching.joining import Arrays, Share, cut
from services.online.http.connection.known import KnownRequest, RenderedResponse, Tails
from services.online.http.inference import InferHandler
from services.protocol.compression import COMPRESS_FROM_BYTES
from services.protocol.json_data import encode_data
from services.protocol.wire import encode_raw

_NUMBERS = OPT_SERIALIZE_NUMPY
# What a number and its comma take as text at most: -1.7976931348623157e+308 is the longest.
_MOST_DIGITS = 26
_TEXT_START = b"content-type: application/json\r\ncontent-length: "


class Text(NamedTuple):
    """What answers in JSON have besides: the numbers of the whole batch, and how many a row has.

    `start` goes up to the content's length; `others` follow the tensors, and the content
    without these is `fixed` bytes long.
    """

    start: bytes
    others: tuple[bytes, ...]
    fixed: int
    numbers: tuple[tuple[np.ndarray, int], ...]

    def parts(self, first: int, stop: int) -> tuple[bytes, list[bytes]]:
        """All to the length's line; and rows `first` to `stop`, with what follows each tensor."""
        if len(self.numbers) == 1:
            ((values, size),) = self.numbers
            chunks = [dumps(values[first * size : stop * size], option=_NUMBERS), self.others[0]]
            length = self.fixed + len(chunks[0])
        else:
            length, chunks = self.fixed, []
            for (values, size), other in zip(self.numbers, self.others, strict=True):
                text = dumps(values[first * size : stop * size], option=_NUMBERS)
                length += len(text)
                chunks += (text, other)
        return b"%b%d\r\n" % (self.start, length), chunks


class ResponsePlan(NamedTuple):
    """An answer to those who asked alike, but for its timing, its id and its tensors.

    `start` goes up to the timing and `end` from the id to the first tensor. Binary ones are in
    `pieces`: the bytes of each output of the whole batch, and how many of them a row has.
    With a `text` there is neither `start` nor `pieces`.
    """

    start: bytes
    end: bytes
    pieces: tuple[tuple[bytes, int], ...]
    text: Text | None

    def parts(self, first: int, stop: int) -> tuple[bytes, list[bytes]]:
        """All up to the timing, and rows `first` to `stop` with what follows each tensor."""
        if self.text is not None:
            return self.text.parts(first, stop)
        return self.start, [piece[first * size : stop * size] for piece, size in self.pieces]


def make_plan(inference: InferHandler, known: KnownRequest, share: Share) -> ResponsePlan | None:
    """None for what goes the long way; raises what an answer's encoding does."""
    outputs, wanted = share[0], known.outputs
    tails = tuple([outputs[name].shape[1:] for name in wanted])
    rendered = known.rendered
    if rendered is None or rendered.tails != tails:
        rendered = known.rendered = _render(inference, known, share, tails)
    if not known.binary:
        return _plan_text(known, rendered, outputs)
    if rendered.packs:
        return None
    pieces = []
    for name, spec in wanted.items():
        content = encode_raw(spec.dtype, outputs[name])
        pieces.append((content, len(content) // outputs[name].shape[0]))
    return ResponsePlan(rendered.start, rendered.end, tuple(pieces), None)


def _plan_text(
    known: KnownRequest, rendered: RenderedResponse, outputs: Arrays
) -> ResponsePlan | None:
    _, start, end, others, fixed, packs = rendered
    numbers, most = [], fixed
    for name, spec in known.outputs.items():
        values = encode_data(spec, outputs[name])
        assert isinstance(values, np.ndarray)  # BYTES are never known
        size = len(values) // outputs[name].shape[0]
        numbers.append((values, size))
        most += size * known.rows * _MOST_DIGITS
    if packs and most >= COMPRESS_FROM_BYTES:
        return None
    return ResponsePlan(b"", end, (), Text(start, others, fixed, tuple(numbers)))


def _render(
    inference: InferHandler, known: KnownRequest, share: Share, tails: Tails
) -> RenderedResponse:
    """What is the same in every answer to a request, from one that is made the long way."""
    own = cut(share)
    encoded = inference.encode(known.request, own)
    if not known.binary:
        return _render_text(known, own, encoded.body, tails)
    length = encoded.header_length or 0
    packs = bool(known.head.accept) and len(encoded.body) >= COMPRESS_FROM_BYTES
    kind = encoded.content_type.encode()
    start = b"content-type: %b\r\ncontent-length: %d\r\n" % (kind, len(encoded.body))
    end = b"\r\ninference-header-content-length: %d\r\n\r\n" % length
    return RenderedResponse(tails, start, end + encoded.body[:length], (), 0, packs)


def _render_text(known: KnownRequest, own: Arrays, body: bytes, tails: Tails) -> RenderedResponse:
    parts, at = [], 0
    for name, spec in known.outputs.items():
        text = dumps(encode_data(spec, own[name]), option=_NUMBERS)
        # A text never has this: the quotes within one have backslashes before them.
        begin = body.index(b'"data":' + text, at) + len(b'"data":')
        parts.append(body[at:begin])
        at = begin + len(text)
    first, *others = *parts, body[at:]
    end = b"\r\n\r\n" + first
    fixed = len(first) + sum(map(len, others))
    return RenderedResponse(tails, _TEXT_START, end, tuple(others), fixed, bool(known.head.accept))
