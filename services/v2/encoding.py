"""Content codings of HTTP bodies: gzip and deflate, inflated under a limit.

A body is inflated piece by piece, never beyond the limit and, once it is large, never to
many times its own size: a small one that would become huge costs no more than that.
`deflate` is the zlib format, as RFC 9110 defines it. One coding at a time, one gzip
member: what clients send.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from bundle.errors import ErrorCode, MlctlError
from services.v2.wire import invalid, shown

CODINGS = ("gzip", "deflate")
IDENTITY = "identity"
# An answer of a few packets gains little from being smaller; the greatest takes about twenty
# milliseconds of the event loop.
PACK_FROM_BYTES = 4 << 10
PACK_TO_BYTES = 2 << 20
# What the end of an answer must shrink to for the rest to be worth it: most tensors of floats
# do not, and many clients ask for packing without knowing.
_SAMPLE_BYTES = 2 << 10
_WORTHWHILE = 0.8
# Text and numbers rarely shrink to less than a twentieth; the format goes to a thousandth.
MAX_RATIO = 100
_ANY_RATIO_BYTES = 1 << 20
# zlib's window: its greatest size, plus 16 for gzip's frame.
_WINDOW: Mapping[str, int] = MappingProxyType(
    {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
)
_FASTEST = 1

Headers = list[tuple[bytes, bytes]]
_ALIASES: Mapping[str, str] = MappingProxyType({"x-gzip": "gzip", "": IDENTITY})


def content_coding(value: str) -> str:
    """The coding that a Content-Encoding header names; UNSUPPORTED_MEDIA_TYPE if not served."""
    name = value.strip().lower()
    name = _ALIASES.get(name, name)
    if name not in (*CODINGS, IDENTITY):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"content encoding {shown(value)} is not served",
            f"Use one of {', '.join(CODINGS)}, or none.",
        )
    return name


class Inflater:
    """Inflates one body that comes in pieces, to at most `limit` bytes.

    And to at most MAX_RATIO times the bytes that came, if it has more than a mebibyte.
    """

    def __init__(self, coding: str, limit: int) -> None:
        self._coding = coding
        self._limit = limit
        self._stream = zlib.decompressobj(wbits=_WINDOW[coding])
        self._body = bytearray()
        self._received = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece; INVALID_INPUT if it is damaged, PAYLOAD_TOO_LARGE over the limit."""
        if self._stream.eof and piece:
            raise invalid(f"there is data after the end of the {self._coding} body")
        self._received += len(piece)
        limit = min(self._limit, max(_ANY_RATIO_BYTES, MAX_RATIO * self._received))
        try:
            # One byte more than may be: enough to see that there is too much.
            self._body += self._stream.decompress(piece, limit + 1 - len(self._body))
        except zlib.error:
            raise invalid(f"the body is not valid {self._coding}") from None
        if len(self._body) > limit:
            bound = "the limit of" if limit == self._limit else f"{MAX_RATIO} times its size, to"
            raise MlctlError(
                ErrorCode.PAYLOAD_TOO_LARGE, f"the body inflates to more than {bound} {limit} bytes"
            )
        if self._stream.unused_data:
            raise invalid(f"there is data after the end of the {self._coding} body")

    def finish(self) -> bytes:
        """The whole body; INVALID_INPUT if its end is missing."""
        if not self._stream.eof:
            raise invalid(f"the {self._coding} body ends too early")
        return bytes(self._body)


def inflate(pieces: Iterable[bytes], coding: str, limit: int) -> bytes:
    """The body that `pieces` hold in `coding`, one of `CODINGS`; raises what `Inflater` does."""
    inflater = Inflater(coding, limit)
    for piece in pieces:
        inflater.feed(piece)
    return inflater.finish()


def accepted_coding(value: str) -> str | None:
    """The coding to answer in by an Accept-Encoding header (RFC 9110, 12.5.3); None for none.

    The one of greatest weight, gzip if they are equal; identity only if it is preferred.
    """
    weights = dict(_weights(value))
    best = max(CODINGS, key=lambda coding: weights.get(coding, weights.get("*", 0.0)))
    weight = weights.get(best, weights.get("*", 0.0))
    return best if weight > 0 and weight >= weights.get(IDENTITY, 0.0) else None


def pack(body: bytes, accept: bytes) -> tuple[bytes, Headers]:
    """An answer's body in the coding that `accept`, an Accept-Encoding header, asks for.

    With the headers that say so. One that would not gain by it, or that is so large that
    other requests would wait for it, stays as it is.
    """
    if not accept or not PACK_FROM_BYTES <= len(body) <= PACK_TO_BYTES:
        return body, []
    coding = accepted_coding(accept.decode("latin-1"))
    if coding is None:
        return body, []
    end = body[-_SAMPLE_BYTES:]
    if len(deflate(end, coding)) > _WORTHWHILE * len(end):
        return body, []
    headers = [(b"content-encoding", coding.encode()), (b"vary", b"accept-encoding")]
    return deflate(body, coding), headers


def _weights(value: str) -> Iterable[tuple[str, float]]:
    for item in value.lower().split(","):
        name, _, parameter = item.partition(";")
        name = name.strip()
        key, _, weight = parameter.partition("=")
        yield _ALIASES.get(name, name), _weight(weight) if key.strip() == "q" else 1.0


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0  # not understood, so not accepted
    return weight if 0.0 <= weight <= 1.0 else 0.0


def deflate(body: bytes, coding: str) -> bytes:
    """`body` in `coding`, one of `CODINGS`: quickly rather than small."""
    stream = zlib.compressobj(_FASTEST, wbits=_WINDOW[coding])
    return stream.compress(body) + stream.flush()
