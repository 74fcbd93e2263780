"""The bytes of hostile connections: each sends far more than its share, and some break the rules.

A connection sends `first` once and `repeated` again and again. Bytes with numbers of streams cannot
be repeated on one connection, which is replaced at their end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlctl.services.online.grpc.http2 import frames
from mlctl.services.online.grpc.http2.frames import frame
from mlctl.services.online.grpc.http2.hpack import literal
from mlctl.services.protocol.messages import SERVICE

_CALLS = 5000
_HEAD = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/ModelInfer".encode()),
        (b":authority", b"127.0.0.1"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
_HELLO = frames.PREFACE + frames.settings({}) + frame(frames.SETTINGS, frames.ACK, 0)
_WHOLE = frames.END_HEADERS | frames.END_STREAM
_EMPTY = b"\0\0\0\0\0"
# A message of 983,040 bytes, of which few arrive.
_BEGUN = b"\0\0\x0f\0\0"
_ONE, _CANCEL, _NOTHING = (frames.NUMBER.pack(number) for number in (1, 8, 0))
# 30,000 bytes of Huffman's code for zeros: a literal without indexing.
_HUFFMAN = (
    b"\0\1a\xff"
    + bytes([(30_000 - 127) & 127 | 128, (30_000 - 127) >> 7 & 127 | 128, 1])
    + (b"\0" * 30_000)
)
_MANY_FIELDS = b"".join(literal(b"x-%d" % number, b"") for number in range(300))


@dataclass(frozen=True, slots=True)
class Attack:
    """What one connection sends, to the port of `transport` (http or grpc)."""

    name: str
    transport: str
    first: bytes
    repeated: bytes = b""


def _pipelined(name: str, request: bytes) -> Attack:
    return Attack(name, "http", b"", request * (100_000 // len(request)))


def _frames(name: str, first: bytes, more: bytes) -> Attack:
    return Attack(name, "grpc", _HELLO + first, more * (100_000 // len(more)))


def _calls(name: str, call: Callable[[int], bytes], count: int = _CALLS) -> Attack:
    return Attack(name, "grpc", _HELLO + b"".join(map(call, range(1, 2 * count, 2))))


def _begun(stream: int, block: bytes = _HEAD) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream, block)


def _sent(stream: int) -> bytes:
    return _begun(stream) + frame(frames.DATA, frames.END_STREAM, stream, _EMPTY)


ATTACKS = (
    _pipelined("pipelined GET", b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"),
    _pipelined(
        "pipelined POST, another model",
        b"POST /v2/models/nope/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    ),
    _pipelined(
        "pipelined POST, no JSON",
        b"POST /v2/models/bench/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{]",
    ),
    _calls("calls, then their cancellation", lambda stream: (
        _sent(stream) + frame(frames.RST_STREAM, 0, stream, _CANCEL)
    )),
    _calls("resets by a window's update of 0", lambda stream: (
        _sent(stream) + frame(frames.WINDOW_UPDATE, 0, stream, _NOTHING)
    )),
    _calls("resets by late data", lambda stream: (
        _sent(stream) + frame(frames.DATA, frames.END_STREAM, stream, b"x")
    )),
    _calls("resets by late headers", lambda stream: (
        _sent(stream) + frame(frames.HEADERS, _WHOLE, stream, literal(b"a", b"b"))
    )),
    _calls("calls without a message", lambda stream: frame(frames.HEADERS, _WHOLE, stream, _HEAD)),
    _calls("calls with other headers each", lambda stream: (
        frame(frames.HEADERS, _WHOLE, stream, _HEAD + b"\x40\1a\4%04x" % (stream & 0xFFFF))
    )),
    _calls("calls of 30 kB of Huffman's code", lambda stream: (
        frame(frames.HEADERS, _WHOLE, stream, _HEAD + _HUFFMAN)
    ), 200),
    _calls("calls of 300 fields", lambda stream: (
        frame(frames.HEADERS, _WHOLE, stream, _HEAD + _MANY_FIELDS)
    ), 1000),
    _frames("data of one byte", _begun(1) + frame(frames.DATA, 0, 1, _BEGUN),
            frame(frames.DATA, 0, 1, b"x")),
    _frames("acknowledged settings", b"", frame(frames.SETTINGS, frames.ACK, 0)),
    _frames("pings", b"", frame(frames.PING, 0, 0, bytes(8))),
    _frames("windows that open by one", b"", frame(frames.WINDOW_UPDATE, 0, 0, _ONE)),
)  # fmt: skip
