"""The server's side of one HTTP/2 connection (RFC 9113), without I/O or clock.

Only the part that gRPC and infer requests need: requests, responses, flow control and GOAWAY.
Received bytes become events; frames to send are in `out`, in order. Most calls arrive whole, in one
read, as clients and proxies write a small call at once: they have a fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from mlctl.services.online.grpc.http2 import frames
from mlctl.services.online.grpc.http2.events import (
    ControlFrame,
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PongReceived,
    StreamReset,
    WholeCallReceived,
    WindowOpened,
)
from mlctl.services.online.grpc.http2.frames import BrokenError, Reason, SettingId
from mlctl.services.online.grpc.http2.head import (
    HEADERS,
    OK_TRAILERS,
    Fields,
    MalformedError,
    check_length,
    check_trailers,
)
from mlctl.services.online.grpc.http2.hpack import NO_TABLE, HeadReader, encode
from mlctl.services.online.grpc.http2.messages import PREFIX_BYTES

WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 16 << 20
MAX_STREAMS: Final = 256
# More than a proxy lets through: a larger head ends the connection, which many clients share.
MAX_HEADER_BYTES: Final = 63 << 10
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
_MAX_FRAGMENTS = 16
# The cost of resets, of frames of a stream that has ended, and of streams above the limit.
_LATE_COST = 0.125
_FORWARDED = ControlFrame(_LATE_COST, forwarded=True)
_TOO_MANY_REQUESTS: Fields = ((b":status", b"429"),)
# A stream may have so many frames of data whatever their size, and then one for so many bytes.
_FREE_FRAMES = 1000
_BYTES_PER_FRAME = 16
_SMALL_UPDATE: Final = 4 << 8 | frames.WINDOW_UPDATE
_unpack = frames.FRAME_HEAD.unpack_from
_number = frames.NUMBER.unpack_from
_pack = frames.FRAME_HEAD.pack


class StreamState:
    """One stream: the bytes that may be sent (`window`) and received (`room`).

    `spare` counts down with each frame of data, and up with its bytes; `missing` are the bytes of
    the declared length that have not arrived, or None without one. An answer that has `begun` has
    sent its headers.
    """

    __slots__ = ("answered", "begun", "ended", "missing", "room", "spare", "window")

    def __init__(self, window: int, *, ended: bool) -> None:
        self.window = window
        self.room = WINDOW_BYTES
        self.ended = ended  # by the client
        self.answered = self.begun = False
        self.missing: int | None = None
        self.spare = _FREE_FRAMES * _BYTES_PER_FRAME


class Sending:
    """The sending half of a connection: frames in `out`, within the client's windows.

    The first frames announce the limits above.
    """

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
        self.streams[stream].begun = True
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

    def respond(self, stream: int, block: bytes, body: bytes) -> bool:
        """Send a whole response of HTTP, if the windows and a frame have room for its body."""
        found, size = self.streams[stream], len(body)
        if size > self.max_frame or size > self.window or size > found.window:
            return False
        if not self.ready or not found.ended:
            return False
        self.window -= size
        del self.streams[stream]
        head = _pack(len(block) << 8 | frames.HEADERS, frames.END_HEADERS, stream)
        data = _pack(size << 8 | frames.DATA, frames.END_STREAM, stream)
        self.out += (head, block, data, body)
        return True

    def end_data(self, stream: int) -> None:
        """End an answer that has no trailers."""
        self.out.append(frames.frame(frames.DATA, frames.END_STREAM, stream))
        self._answered(stream)

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


class Block:
    """An incomplete header block."""

    __slots__ = ("data", "flags", "fragments", "stream")

    def __init__(self, stream: int, flags: int, data: bytes) -> None:
        self.stream = stream
        self.flags = flags
        self.data = bytearray(data)
        self.fragments = 0


class Core(Sending):
    """One connection: `receive` takes the received bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.last_stream = 0
        self.greeted = False
        self._first_window = frames.DEFAULT_WINDOW
        self._room = CONNECTION_WINDOW_BYTES
        self._reader = HeadReader(MAX_HEADER_BYTES)
        self._tail = bytearray()
        self._block: Block | None = None
        self._need = len(frames.PREFACE)
        self._prefaced = False
        self._rare: dict[int, Callable[[int, int, bytes], Iterator[Event]]] = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window,
            frames.CONTINUATION: self._on_continuation,
        }

    def receive(self, data: bytes) -> Iterator[Event]:
        """Yield the events in `data`; after a BrokenError the connection must end."""
        if self._tail or not self._prefaced:
            self._tail += data
            if len(self._tail) < self._need and self._prefaced:
                return
            data = bytes(self._tail)
            self._tail.clear()
        at = 0 if self._prefaced else self._skip_preface(data)
        size = len(data)
        reader = self._reader
        while at + 9 <= size:
            if reader.cost:  # by the heads before this frame
                yield ControlFrame(reader.cost)
                reader.cost = 0.0
            word, flags, stream = _unpack(data, at)
            length = word >> 8
            if length > MAX_FRAME_BYTES:
                raise BrokenError(Reason.FRAME_SIZE_ERROR, "a frame is too large")
            start = at + 9
            end = start + length
            if end > size:
                break
            kind = word & 0xFF
            if kind == frames.HEADERS and flags == 4 and end + 9 <= size:
                found = self._whole(data, stream, start, end)
                if found is not None:
                    at = found[1]
                    yield found[0]
                    continue
            at = end
            yield from self._frame(kind, flags, stream & frames.MAX_STREAM, data[start:end])
        if at < size:
            self._keep(data, at)

    def _whole(
        self, data: bytes, stream: int, start: int, end: int
    ) -> tuple[WholeCallReceived | ControlFrame, int] | None:
        """Return the call whose headers begin at `start`, and its end, if it is complete."""
        found = None if end - start > MAX_HEADER_BYTES else self._body(data, stream, end)
        if found is None or self._block is not None:
            return None
        window, at, stop, end_at = found
        self.last_stream = stream
        try:
            head = self._reader.read(data[start:end])
            if head.length is not None:
                check_length(head.length, stop - at)
        except MalformedError:
            self.out.append(frames.reset(stream, Reason.PROTOCOL_ERROR))
            return ControlFrame(1.0), end  # its block is read, and its data comes late
        self.streams[stream] = StreamState(self._first_window + window, ended=True)
        self._take(stop - at)
        return WholeCallReceived(stream, head, data[at:stop]), end_at

    def _body(self, data: bytes, stream: int, end: int) -> tuple[int, int, int, int] | None:
        """Return the window update of a new call, the span of its data and its end, or None.

        The data follows the headers, which end at `end`, in one frame. gRPC's own clients send a
        window update between the two; a proxy of HTTP/1.1 sends the end in an empty frame.
        """
        word, flags, same = _unpack(data, end)
        window, at = 0, end + 9
        if word == _SMALL_UPDATE and same == stream and at + 13 <= len(data):
            window = _number(data, at)[0]
            word, flags, same = _unpack(data, at + 4)
            at += 13
        size = word >> 8
        stop = end_at = at + size
        if size and not flags and data.startswith(_pack(0, frames.END_STREAM, stream), stop):
            flags, end_at = frames.END_STREAM, stop + 9
        if (
            word & 0xFF != frames.DATA or flags != frames.END_STREAM or same != stream
            or stop > len(data) or size > self._room or size > MAX_FRAME_BYTES
            or not stream & 1 or not self.last_stream < stream <= frames.MAX_STREAM
            or not self.greeted or len(self.streams) >= MAX_STREAMS
            or window + self._first_window > frames.MAX_WINDOW or (at > end + 9 and not window)
        ):  # fmt: skip
            return None
        return window, at, stop, end_at

    def _take(self, size: int) -> None:
        """Charge `size` bytes to the connection's window; reopen it when a quarter is used."""
        self._room -= size
        if self._room < 0:
            raise BrokenError(Reason.FLOW_CONTROL_ERROR, "more came than the window has")
        if self._room < CONNECTION_WINDOW_BYTES // 4 * 3:
            more = CONNECTION_WINDOW_BYTES - self._room
            self._room = CONNECTION_WINDOW_BYTES
            self.out.append(frames.window_update(0, more))

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the incomplete frame that begins at `at` until the rest arrives."""
        self._tail += data[at:]
        self._need = 9
        if self._prefaced and at + 9 <= len(data):
            self._need += _unpack(data, at)[0] >> 8

    def _skip_preface(self, data: bytes) -> int:
        if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
            raise BrokenError(Reason.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < len(frames.PREFACE):
            self._tail += data
            return len(data)
        self._prefaced = True
        return len(frames.PREFACE)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if not self.greeted and (kind != frames.SETTINGS or flags & frames.ACK):
            raise BrokenError(Reason.PROTOCOL_ERROR, "settings have to be the first frame")
        if self._block is not None and kind != frames.CONTINUATION:
            raise BrokenError(Reason.PROTOCOL_ERROR, "a header block is interrupted")
        if kind == frames.DATA:
            return self._on_data(flags, stream, payload)
        if kind == frames.HEADERS:
            return self._on_headers(flags, stream, payload)
        handle = self._rare.get(kind)
        return iter((ControlFrame(1.0),)) if handle is None else handle(flags, stream, payload)

    def _on_data(self, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        self._check_met(stream)
        size = len(payload)
        self._take(size)
        data = _unpadded(payload) if flags & frames.PADDED else payload
        ended = bool(flags & frames.END_STREAM)
        found = self.streams.get(stream)
        if found is None:
            yield _FORWARDED
            return
        reason = self._rejection(found, size, len(data), ended=ended)
        if reason is not None:
            if reason is Reason.ENHANCE_YOUR_CALM and not found.begun:
                # A proxy that is reset takes the server for broken, and an answer for one.
                self.send_headers(stream, _TOO_MANY_REQUESTS, end=True)
                reason = Reason.NO_ERROR
            yield from self._fault(stream, reason)
            return
        if ended:
            self._end(stream, found)
        if not data and not ended:
            yield ControlFrame(1.0)
        yield DataReceived(stream, data, size, ended)

    def _rejection(
        self, found: StreamState, size: int, length: int, *, ended: bool
    ) -> Reason | None:
        """Charge a frame of `size` bytes, `length` of them data, to its stream."""
        _check_open(found)
        found.room -= size
        found.spare += length - _BYTES_PER_FRAME
        if found.missing is not None:
            found.missing -= length
            if found.missing < 0 or (ended and found.missing):
                return Reason.PROTOCOL_ERROR
        if found.spare < 0:
            return Reason.ENHANCE_YOUR_CALM
        return Reason.FLOW_CONTROL_ERROR if found.room < 0 else None

    def _fault(self, stream: int, reason: Reason) -> Iterator[Event]:
        """Reset a stream for an error of the client, which is charged for it."""
        self.send_reset(stream, reason)
        yield StreamReset(stream, by_client=False)
        yield ControlFrame(1.0)

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if not stream & 1:
            raise BrokenError(Reason.PROTOCOL_ERROR, "a client's stream has an odd number")
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        if flags & frames.WITH_PRIORITY:
            if len(payload) < 5:
                raise BrokenError(Reason.FRAME_SIZE_ERROR, "a priority is cut off")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            yield from self._on_block(flags, stream, payload)
        else:
            self._block = Block(stream, flags, payload)

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        block = self._block
        if block is None or block.stream != stream:
            raise BrokenError(Reason.PROTOCOL_ERROR, "nothing is there to be continued")
        block.data += payload
        block.fragments += 1
        if block.fragments > _MAX_FRAGMENTS:
            raise BrokenError(Reason.ENHANCE_YOUR_CALM, "a header block has too many fragments")
        if len(block.data) > MAX_HEADER_BYTES:
            raise BrokenError(Reason.ENHANCE_YOUR_CALM, "a header block is too large")
        if flags & frames.END_HEADERS:
            self._block = None
            yield from self._on_block(block.flags, stream, bytes(block.data))

    def _on_block(self, flags: int, stream: int, block: bytes) -> Iterator[Event]:
        if len(block) > MAX_HEADER_BYTES:
            raise BrokenError(Reason.ENHANCE_YOUR_CALM, "a header block is too large")
        ended = bool(flags & frames.END_STREAM)
        if stream <= self.last_stream:
            yield from self._on_trailers(stream, block, ended=ended)
            return
        self._open(stream, ended=ended)
        try:
            head = self._reader.read(block)
            if ended and head.length is not None:
                check_length(head.length, 0)
        except MalformedError:
            self.send_reset(stream, Reason.PROTOCOL_ERROR)
            yield ControlFrame(1.0)
            return
        if len(self.streams) > MAX_STREAMS:
            self.reject(stream)
            yield ControlFrame(_LATE_COST)
            return
        self.streams[stream].missing = head.length
        yield HeadersReceived(stream, head, ended)

    def _on_trailers(self, stream: int, block: bytes, *, ended: bool) -> Iterator[Event]:
        fields = self._reader.decode(block)
        found = self.streams.get(stream)
        if found is None:
            if any(name == b":method" for name, _ in fields):
                raise BrokenError(Reason.PROTOCOL_ERROR, "a new stream has a lower number")
            yield ControlFrame(_LATE_COST)
            return
        _check_open(found)
        try:
            check_trailers(fields, ended=ended)
            check_length(found.missing or 0, 0)
        except MalformedError:
            yield from self._fault(stream, Reason.PROTOCOL_ERROR)
            return
        self._end(stream, found)
        yield DataReceived(stream, b"", 0, ended=True)

    def _on_priority(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if stream == 0:
            raise BrokenError(Reason.PROTOCOL_ERROR, "a priority has a stream")
        if len(payload) != 5:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a priority has five bytes")
        yield ControlFrame(1.0)

    def _on_reset(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if len(payload) != 4:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a reset has four bytes")
        self._check_met(stream)
        if self.streams.pop(stream, None) is not None:
            yield StreamReset(stream, by_client=True)
        yield _FORWARDED

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if stream:
            raise BrokenError(Reason.PROTOCOL_ERROR, "settings are the connection's")
        if flags & frames.ACK:
            if payload:
                raise BrokenError(Reason.FRAME_SIZE_ERROR, "an acknowledgement has no settings")
            yield ControlFrame(1.0)
            return
        # The last of equal ones holds; to change windows over and over would take long.
        values = dict(frames.read_settings(payload))
        if values.get(SettingId.ENABLE_PUSH, 0) > 1:
            raise BrokenError(Reason.PROTOCOL_ERROR, "push is neither on nor off")
        self.max_frame = values.get(SettingId.MAX_FRAME_SIZE, self.max_frame)
        if not frames.DEFAULT_FRAME_BYTES <= self.max_frame < 1 << 24:
            raise BrokenError(Reason.PROTOCOL_ERROR, "this is not a frame's size")
        window = values.get(SettingId.INITIAL_WINDOW_SIZE, self._first_window)
        more = window - self._first_window
        self._first_window = window
        for found in self.streams.values():
            found.window += more
        if max([window, *[found.window for found in self.streams.values()]]) > frames.MAX_WINDOW:
            raise BrokenError(Reason.FLOW_CONTROL_ERROR, "a window is too large")
        self.greeted = True
        self.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        yield ControlFrame(1.0)
        yield WindowOpened(0)

    def _on_push(self, _flags: int, _stream: int, _payload: bytes) -> Iterator[Event]:
        raise BrokenError(Reason.PROTOCOL_ERROR, "a client pushes nothing")

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if len(payload) != 8:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a ping has eight bytes")
        if stream:
            raise BrokenError(Reason.PROTOCOL_ERROR, "a ping is the connection's")
        if flags & frames.ACK:
            yield PongReceived(payload)
        else:
            self.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        yield ControlFrame(1.0)

    def _on_goaway(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if len(payload) < 8:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "GOAWAY has at least eight bytes")
        if stream:
            raise BrokenError(Reason.PROTOCOL_ERROR, "GOAWAY belongs to the connection")
        yield ControlFrame(1.0)
        yield GoAwayReceived(frames.NUMBER.unpack_from(payload, 4)[0])

    def _on_window(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if len(payload) != 4:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a window's update has four bytes")
        more = frames.NUMBER.unpack(payload)[0] & frames.MAX_WINDOW
        yield ControlFrame(_LATE_COST)
        if stream == 0:
            was_closed = self.window <= 0
            self.window += more
            if not more:
                raise BrokenError(Reason.PROTOCOL_ERROR, "a window's update opens nothing")
            if self.window > frames.MAX_WINDOW:
                raise BrokenError(Reason.FLOW_CONTROL_ERROR, "a window opens too far")
            if was_closed:  # else nothing waits for this window
                yield WindowOpened(0)
        else:
            self._check_met(stream)
            found = self.streams.get(stream)
            if found is None:
                return
            found.window += more
            if not more or found.window > frames.MAX_WINDOW:
                reason = Reason.FLOW_CONTROL_ERROR if more else Reason.PROTOCOL_ERROR
                yield from self._fault(stream, reason)
                return
            yield WindowOpened(stream)

    def _open(self, stream: int, *, ended: bool) -> None:
        self.last_stream = stream
        self.streams[stream] = StreamState(self._first_window, ended=ended)

    def _end(self, stream: int, found: StreamState) -> None:
        found.ended = True
        if found.answered:
            del self.streams[stream]

    def _check_met(self, stream: int) -> None:
        if stream == 0 or stream > self.last_stream or not stream & 1:
            raise BrokenError(Reason.PROTOCOL_ERROR, "there was no such stream")


def _check_open(found: StreamState) -> None:
    """End the connection of a client that sends more of a stream that it has ended.

    A reset of the stream would cost the client nothing, and the server a call.
    """
    if found.ended:
        raise BrokenError(Reason.STREAM_CLOSED, "a stream goes on after its end")


def _unpadded(payload: bytes) -> bytes:
    padding = payload[0] if payload else len(payload)
    if padding >= len(payload):
        raise BrokenError(Reason.PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - padding]
