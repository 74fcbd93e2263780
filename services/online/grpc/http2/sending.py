"""The sending half of one HTTP/2 connection: frames in order, within the client's windows."""

from __future__ import annotations

from struct import Struct
from typing import Final

from services.online.grpc.http2 import frames
from services.online.grpc.http2.frames import Reason, SettingId
from services.online.grpc.http2.head import HEADERS, OK_TRAILERS, Fields
from services.online.grpc.http2.hpack import NO_TABLE, encode
from services.online.grpc.http2.messages import PREFIX_BYTES

WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 16 << 20
MAX_STREAMS: Final = 256
MAX_HEADER_BYTES: Final = 16 << 10
MAX_FRAME_BYTES: Final = 64 << 10
_HELLO = (
    frames.settings(
        {
            SettingId.HEADER_TABLE_SIZE: 0,  # see `hpack`
            SettingId.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingId.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            SettingId.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            SettingId.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
    ),
    frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW),
)
# The frames of an answer: headers, the head of the data with the message's prefix, trailers.
_HEADERS, _OK_TRAILERS = encode(HEADERS), encode(OK_TRAILERS)
_BEGIN = frames.frame(frames.HEADERS, frames.END_HEADERS, 0, _HEADERS)[:5]
_LAST = frames.END_HEADERS | frames.END_STREAM
_END = frames.frame(frames.HEADERS, _LAST, 0, _OK_TRAILERS)[:5]
_ANSWER = Struct(f">5sL{len(_HEADERS)}sLBLBL").pack
_ENDING = Struct(f">5sL{len(_OK_TRAILERS)}s").pack


class StreamState:
    """One stream: the bytes that may be sent (`window`) and received (`room`)."""

    __slots__ = ("answered", "ended", "room", "window")

    def __init__(self, window: int, *, ended: bool) -> None:
        self.window = window
        self.room = WINDOW_BYTES
        self.ended = ended  # by the client
        self.answered = False


class Sending:
    """The frames to send are in `out`, in order; the first announce the limits above."""

    def __init__(self) -> None:
        self.out: list[bytes] = list(_HELLO)
        self.streams: dict[int, StreamState] = {}
        self.window = frames.DEFAULT_WINDOW
        self.max_frame = frames.DEFAULT_FRAME_BYTES
        self.ready = False  # to send answers whose bytes are known

    def headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """Send a header block that `encode` made, of up to one frame."""
        flags = _LAST if end else frames.END_HEADERS
        if not self.ready:
            self.ready, block = True, NO_TABLE + block
        self.out.append(frames.frame(frames.HEADERS, flags, stream, block))
        if end:
            self._answered(stream)

    def send_headers(self, stream: int, fields: Fields, *, end: bool = False) -> None:
        """Send headers or trailers."""
        self.headers(stream, encode(fields), end=end)

    def answer(self, stream: int, message: bytes) -> bool:
        """Send a whole answer of one message, if the windows and a frame have room for it."""
        found, length = self.streams[stream], len(message)
        size = length + PREFIX_BYTES
        if size > self.max_frame or size > self.window or size > found.window:
            return False
        if not self.ready or not found.ended:
            return False
        self.window -= size
        del self.streams[stream]
        begin = _ANSWER(_BEGIN, stream, _HEADERS, size << 8, 0, stream, 0, length)
        self.out += (begin, message, _ENDING(_END, stream, _OK_TRAILERS))
        return True

    def send_data(self, stream: int, data: bytes | memoryview) -> None:
        """Send what `may_send` allows."""
        size = len(data)
        self.window -= size
        self.streams[stream].window -= size
        self.out.append(frames.FRAME_HEAD.pack(size << 8 | frames.DATA, 0, stream) + data)

    def may_send(self, stream: int) -> int:
        """How many bytes of data a frame may have now; negative after a window was shrunk."""
        return min(self.window, self.streams[stream].window, self.max_frame)

    def send_reset(self, stream: int, reason: int) -> None:
        """End a stream, if it has not ended."""
        if self.streams.pop(stream, None) is not None:
            self.out.append(frames.reset(stream, reason))

    def reject(self, stream: int) -> None:
        """Reset a stream whose call was not processed: the client may retry it."""
        self.send_reset(stream, Reason.REFUSED_STREAM)

    def ping(self, data: bytes) -> None:
        """Send a ping; the client returns the same eight bytes."""
        self.out.append(frames.frame(frames.PING, 0, 0, data))

    def goaway(self, last_stream: int, reason: int = Reason.NO_ERROR) -> None:
        """Announce that later streams are not answered."""
        self.out.append(frames.goaway(last_stream, reason))

    def give(self, stream: int, size: int) -> None:
        """Let the client send so many bytes more of the stream."""
        found = self.streams.get(stream)
        if size and found is not None and not found.ended:
            found.room += size
            self.out.append(frames.window_update(stream, size))

    def _answered(self, stream: int) -> None:
        found = self.streams[stream]
        if found.ended:
            del self.streams[stream]
        else:
            found.answered = True
