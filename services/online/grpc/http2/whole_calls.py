"""Calls that arrive in one read: nearly all, as gRPC's clients write a small call at once."""

from __future__ import annotations

from typing import Final

from services.online.grpc.http2 import frames
from services.online.grpc.http2.events import ControlFrame, WholeCallReceived
from services.online.grpc.http2.frames import BrokenError, Reason
from services.online.grpc.http2.head import MalformedError
from services.online.grpc.http2.hpack import HeadReader
from services.online.grpc.http2.sending import (
    CONNECTION_WINDOW_BYTES,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_STREAMS,
    Sending,
    StreamState,
)

_SMALL_UPDATE: Final = 4 << 8 | frames.WINDOW_UPDATE
_unpack = frames.FRAME_HEAD.unpack_from
_number = frames.NUMBER.unpack_from


class Block:
    """An incomplete header block."""

    __slots__ = ("data", "flags", "fragments", "stream")

    def __init__(self, stream: int, flags: int, data: bytes) -> None:
        self.stream = stream
        self.flags = flags
        self.data = bytearray(data)
        self.fragments = 0


class Receiving(Sending):
    """The receiving half of a connection, with a fast path for calls that arrive whole."""

    def __init__(self) -> None:
        super().__init__()
        self.last_stream = 0
        self.greeted = False
        self._first_window = frames.DEFAULT_WINDOW
        self._room = CONNECTION_WINDOW_BYTES
        self._reader = HeadReader(MAX_HEADER_BYTES)
        self._tail = bytearray()
        self._block: Block | None = None

    def _whole(
        self, data: bytes, stream: int, start: int, end: int
    ) -> tuple[WholeCallReceived | ControlFrame, int] | None:
        """Return the call whose headers begin at `start`, and its end, if it is complete."""
        found = None if end - start > MAX_HEADER_BYTES else self._body(data, stream, end)
        if found is None or self._block is not None:
            return None
        window, at, stop = found
        try:
            head = self._reader.read(data[start:end])
        except MalformedError:
            self.last_stream = stream
            self.out.append(frames.reset(stream, Reason.PROTOCOL_ERROR))
            return ControlFrame(1.0), end  # its block is read, and its data comes late
        self.last_stream = stream
        self.streams[stream] = StreamState(self._first_window + window, ended=True)
        self._take(stop - at)
        return WholeCallReceived(stream, head, data[at:stop]), stop

    def _body(self, data: bytes, stream: int, end: int) -> tuple[int, int, int] | None:
        """Return the window update of a new call and the span of its data, or None.

        The data follows the headers, which end at `end`, in one frame. gRPC's own clients send a
        window update between the two.
        """
        word, flags, same = _unpack(data, end)
        window, at = 0, end + 9
        if word == _SMALL_UPDATE and same == stream and at + 13 <= len(data):
            window = _number(data, at)[0]
            word, flags, same = _unpack(data, at + 4)
            at += 13
        size = word >> 8
        stop = at + size
        if (
            word & 0xFF != frames.DATA or flags != frames.END_STREAM or same != stream
            or stop > len(data) or size > self._room or size > MAX_FRAME_BYTES
            or not stream & 1 or not self.last_stream < stream <= frames.MAX_STREAM
            or not self.greeted or len(self.streams) >= MAX_STREAMS
            or window + self._first_window > frames.MAX_WINDOW or (at > end + 9 and not window)
        ):  # fmt: skip
            return None
        return window, at, stop

    def _take(self, size: int) -> None:
        """Charge `size` bytes to the connection's window; reopen it when a quarter is used."""
        self._room -= size
        if self._room < 0:
            raise BrokenError(Reason.FLOW_CONTROL_ERROR, "more came than the window has")
        if self._room < CONNECTION_WINDOW_BYTES // 4 * 3:
            more = CONNECTION_WINDOW_BYTES - self._room
            self._room = CONNECTION_WINDOW_BYTES
            self.out.append(frames.window_update(0, more))
