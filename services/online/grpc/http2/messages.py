"""gRPC's messages in a stream of bytes: a flag, a length of four bytes, and the message.

A length above the limit is rejected before its message arrives. The memory budget is charged
for the bytes that have arrived.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from struct import Struct

from mlctl.services.online.batching.admission import Hold, Inflight, too_many_bytes
from mlctl.services.protocol.compression import inflate, inflate_on_thread
from mlctl.services.protocol.wire import invalid

_PREFIX = Struct(">BL")
PREFIX_BYTES = _PREFIX.size
# The memory of an empty message that waits, in bytes.
_OVERHEAD = 128
CODINGS = frozenset({b"identity", b"gzip", b"deflate"})


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message as received, which may be compressed."""

    data: bytes
    compressed: bool


class Assembler:
    """Assembles a stream's messages, each of at most `limit` bytes; charges them to `hold`."""

    __slots__ = (
        "_begun",
        "_begun_message",
        "_charged",
        "_compressed",
        "_hold",
        "_length",
        "_limit",
        "_missing",
        "messages",
    )  # fmt: skip

    def __init__(self, limit: int, hold: Hold) -> None:
        self._limit = limit
        self._hold = hold
        self._charged = 0
        self._begun = b""  # of a prefix
        # Not a list of pieces: a piece of one byte would take fifty bytes.
        self._begun_message = bytearray()
        self._missing: int | None = None  # of a message whose prefix is known
        self._length = 0
        self._compressed = False
        self.messages: deque[RawMessage] = deque()

    @property
    def is_whole(self) -> bool:
        """Whether no message is incomplete."""
        return self._missing is None and not self._begun

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises PAYLOAD_TOO_LARGE, BusyError, INVALID_INPUT."""
        self._split(data)
        self._hold.grow(self._charged)

    def _split(self, data: bytes) -> None:
        if self._begun:
            data, self._begun = self._begun + data, b""
        at = 0
        while at < len(data):
            if self._missing is None:
                if len(data) - at < _PREFIX.size:
                    self._begun = data[at:]
                    return
                missing = self._begin(*_PREFIX.unpack_from(data, at))
                at += _PREFIX.size
            else:
                missing = self._missing
            if missing == 0:
                continue
            piece = data[at : at + missing]
            at += len(piece)
            self._missing = missing - len(piece)
            self._charged += len(piece)
            if len(piece) == self._length:  # whole, as nearly all are
                self._complete(piece)
                continue
            self._begun_message += piece
            if self._missing == 0:
                self._complete(bytes(self._begun_message))

    def take(self) -> RawMessage:
        """Return the next complete message. The last one that waits is no longer charged here."""
        message = self.messages.popleft()
        if not self.messages:
            self._hold.release()
            self._charged = 0 if self._missing is None else len(self._begun_message) + _OVERHEAD
            self._hold.grow(self._charged)
        return message

    def drop(self) -> None:
        """Drop all messages and release their charge."""
        self.messages.clear()
        self._begun_message.clear()
        self._hold.release()

    def _begin(self, flag: int, length: int) -> int:
        if flag > 1:
            raise invalid("a message begins with neither 0 nor 1")
        if length > self._limit:
            raise too_many_bytes(self._limit)
        self._charged += _OVERHEAD
        self._compressed = flag == 1
        if length == 0:
            self._complete(b"")
        else:
            self._missing = self._length = length
        return length

    def _complete(self, data: bytes) -> None:
        self.messages.append(RawMessage(data, self._compressed))
        self._begun_message.clear()
        self._missing = None


def unpack(message: RawMessage, coding: bytes, limit: int) -> bytes:
    """Return the message, of at most `limit` bytes. Raises PAYLOAD_TOO_LARGE, INVALID_INPUT."""
    if not message.compressed:
        return message.data
    return inflate(message.data, _known_coding(coding), limit)


async def unpack_apart(message: RawMessage, coding: bytes, limit: int, inflight: Inflight) -> bytes:
    """Unpack a large compressed message on another thread.

    Until it returns, the message and what it inflates to are charged to `inflight`. Raises
    BusyError as well.
    """
    came = len(message.data)
    with Hold(inflight) as hold:
        hold.grow(came)
        return await inflate_on_thread(
            message.data, _known_coding(coding), limit, lambda size: hold.grow(came + size), None
        )


def _known_coding(coding: bytes) -> str:
    if coding == b"identity":
        raise invalid("a message is compressed, and grpc-encoding does not say how")
    return coding.decode()


def frame(data: bytes) -> bytes:
    """Return a message with its prefix."""
    return _PREFIX.pack(0, len(data)) + data
