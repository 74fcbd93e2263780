"""Content codings of HTTP bodies: gzip and deflate, inflated under a limit.

A body is inflated in steps, up to a size limit and up to a multiple of its compressed size, so a
small body that would become huge is rejected early. `deflate` is the zlib format (RFC 9110). One
coding and one gzip member are supported: that is what clients send.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from types import MappingProxyType

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.wire import invalid, shown

CODINGS = ("gzip", "deflate")
IDENTITY = "identity"
# Smaller responses gain little from compression; the largest one takes about 20 ms of the event
# loop.
COMPRESS_FROM_BYTES = 4 << 10
COMPRESS_TO_BYTES = 2 << 20
# A response is compressed only if its last bytes shrink to this share. Most tensors of floats do
# not, and many clients accept compression by default.
_SAMPLE_BYTES = 2 << 10
_WORTHWHILE = 0.8
# Text and numbers rarely shrink below a twentieth; the format allows a thousandth.
MAX_RATIO = 100
_ANY_RATIO_BYTES = 1 << 20
# A step reads and writes at most this many bytes: some milliseconds of work.
STEP_BYTES = 1 << 20
# Maximum size of zlib's window, plus 16 for gzip's frame.
_WINDOW: Mapping[str, int] = MappingProxyType(
    {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
)
_FASTEST = 1

Headers = list[tuple[bytes, bytes]]
_ALIASES: Mapping[str, str] = MappingProxyType({"x-gzip": "gzip", "": IDENTITY})


def content_coding(value: str) -> str:
    """Parse a Content-Encoding header; UNSUPPORTED_MEDIA_TYPE for an unsupported coding."""
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
    """Inflates `body` in steps, to at most `limit` bytes.

    The result has at most MAX_RATIO times the compressed size, or 1 MiB if that is more.
    """

    def __init__(self, body: bytes, coding: str, limit: int) -> None:
        self._body = body
        self._coding = coding
        self._limit = limit
        self._ratio_limit = max(_ANY_RATIO_BYTES, MAX_RATIO * len(body))
        self._stream = zlib.decompressobj(wbits=_WINDOW[coding])
        self._read = 0
        self._inflated = bytearray()

    @property
    def size(self) -> int:
        """The number of bytes inflated so far."""
        return len(self._inflated)

    def step(self) -> bool:
        """Inflate the next part; return whether the body is complete.

        Raises INVALID_INPUT for a damaged body, PAYLOAD_TOO_LARGE above the limit.
        """
        stream, limit = self._stream, min(self._limit, self._ratio_limit)
        piece = stream.unconsumed_tail
        if not piece:
            piece = self._body[self._read : self._read + STEP_BYTES]
            self._read += len(piece)
        # One byte above the limit is enough to detect a body that is too large.
        max_bytes = min(STEP_BYTES, limit + 1 - self.size)
        try:
            made = stream.decompress(piece, max_bytes)
        except zlib.error:
            raise invalid(f"the body is not valid {self._coding}") from None
        self._inflated += made
        if self.size > limit:
            bound = "the limit of" if limit == self._limit else f"{MAX_RATIO} times its size, to"
            raise MlctlError(
                ErrorCode.PAYLOAD_TOO_LARGE, f"the body inflates to more than {bound} {limit} bytes"
            )
        rest = self._read < len(self._body)
        if stream.eof and (rest or stream.unused_data):
            raise invalid(f"there is data after the end of the {self._coding} body")
        # After a full step the decompressor may hold output although all input is read.
        if not (stream.eof or rest or stream.unconsumed_tail or len(made) == max_bytes):
            raise invalid(f"the {self._coding} body ends too early")
        return stream.eof

    def result(self) -> bytes:
        """The complete body, after `step` returned True."""
        return bytes(self._inflated)


def inflate(body: bytes, coding: str, limit: int) -> bytes:
    """Return `body` without its coding, one of `CODINGS`; raises what `Inflater.step` raises."""
    inflater = Inflater(body, coding, limit)
    while not inflater.step():
        pass
    return inflater.result()


async def inflate_on_thread(
    body: bytes, coding: str, limit: int, charge: Callable[[int], None], pool: Executor | None
) -> bytes:
    """Inflate on a thread of `pool` (None: the loop's default), step by step, so bodies take turns.

    `charge` is called with the inflated size after each step, on the event loop; its exceptions
    end the work.
    """
    loop = asyncio.get_running_loop()
    inflater = Inflater(body, coding, limit)
    complete = False
    while not complete:
        complete = await loop.run_in_executor(pool, inflater.step)
        charge(inflater.size)
    return inflater.result()


def accepted_coding(value: str) -> str | None:
    """Return the response coding for an Accept-Encoding header (RFC 9110, 12.5.3), or None.

    The coding with the largest weight, gzip on a tie; None only if identity is preferred.
    """
    weights = dict(_weights(value))
    best = max(CODINGS, key=lambda coding: weights.get(coding, weights.get("*", 0.0)))
    weight = weights.get(best, weights.get("*", 0.0))
    return best if weight > 0 and weight >= weights.get(IDENTITY, 0.0) else None


def compress_response(body: bytes, accept: bytes) -> tuple[bytes, Headers]:
    """Compress a response as `accept`, an Accept-Encoding header, allows; return body and headers.

    A body that would not shrink, or is so large that it would delay other requests, is unchanged.
    """
    if not accept or not COMPRESS_FROM_BYTES <= len(body) <= COMPRESS_TO_BYTES:
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
        return 0.0  # malformed, so not accepted
    return weight if 0.0 <= weight <= 1.0 else 0.0


def deflate(body: bytes, coding: str) -> bytes:
    """Compress `body` with `coding`, one of `CODINGS`, at the fastest level."""
    stream = zlib.compressobj(_FASTEST, wbits=_WINDOW[coding])
    return stream.compress(body) + stream.flush()
