"""The server's side of one HTTP/2 connection (RFC 9113), without I/O or clock.

Only the part that gRPC needs: requests, responses, flow control and GOAWAY. Received bytes become
events; frames to send are in `out`, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from services.online.grpc.http2 import frames
from services.online.grpc.http2.events import (
    ControlFrame,
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PongReceived,
    StreamReset,
    WindowOpened,
)
from services.online.grpc.http2.frames import BrokenError, Reason, SettingId
from services.online.grpc.http2.head import MalformedError
from services.online.grpc.http2.sending import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_STREAMS,
    StreamState,
)
from services.online.grpc.http2.whole_calls import Block, Receiving

_MAX_FRAGMENTS = 16
# The cost of frames of a stream that has ended, and of streams above the limit.
_LATE_COST = 0.125
_unpack = frames.FRAME_HEAD.unpack_from


class Core(Receiving):
    """One connection: `receive` takes the received bytes."""

    def __init__(self) -> None:
        super().__init__()
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
            yield ControlFrame(_LATE_COST)
            return
        reason = self._rejection(found, size)
        if reason is not None:
            self.send_reset(stream, reason)
            yield StreamReset(stream, by_client=False)
            return
        found.room -= size
        if ended:
            self._end(stream, found)
        if not data and not ended:
            yield ControlFrame(1.0)
        yield DataReceived(stream, data, size, ended)

    def _rejection(self, found: StreamState, size: int) -> Reason | None:
        if found.ended:
            return Reason.STREAM_CLOSED
        return Reason.FLOW_CONTROL_ERROR if size > found.room else None

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
        except MalformedError:
            self.send_reset(stream, Reason.PROTOCOL_ERROR)
            yield ControlFrame(1.0)
            return
        if len(self.streams) > MAX_STREAMS:
            self.reject(stream)
            yield ControlFrame(_LATE_COST)
            return
        yield HeadersReceived(stream, head, ended)

    def _on_trailers(self, stream: int, block: bytes, *, ended: bool) -> Iterator[Event]:
        fields = self._reader.decode(block)
        found = self.streams.get(stream)
        if found is None:
            yield ControlFrame(_LATE_COST)
        elif found.ended or not ended or any(name.startswith(b":") for name, _ in fields):
            self.send_reset(stream, Reason.STREAM_CLOSED if found.ended else Reason.PROTOCOL_ERROR)
            yield StreamReset(stream, by_client=False)
        else:
            self._end(stream, found)
            yield DataReceived(stream, b"", 0, ended=True)

    def _on_priority(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if stream == 0 or len(payload) != 5:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a priority has five bytes and a stream")
        yield ControlFrame(1.0)

    def _on_reset(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if len(payload) != 4:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a reset has four bytes")
        self._check_met(stream)
        yield ControlFrame(1.0)
        if self.streams.pop(stream, None) is not None:
            yield StreamReset(stream, by_client=True)

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if stream:
            raise BrokenError(Reason.PROTOCOL_ERROR, "settings are the connection's")
        if flags & frames.ACK:
            if payload:
                raise BrokenError(Reason.FRAME_SIZE_ERROR, "an acknowledgement has no settings")
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
        yield GoAwayReceived(frames.NUMBER.unpack_from(payload, 4)[0])

    def _on_window(self, _flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if len(payload) != 4:
            raise BrokenError(Reason.FRAME_SIZE_ERROR, "a window's update has four bytes")
        more = frames.NUMBER.unpack(payload)[0] & frames.MAX_WINDOW
        yield ControlFrame(_LATE_COST)
        if stream == 0:
            was_closed = self.window <= 0
            self.window += more
            if not more or self.window > frames.MAX_WINDOW:
                raise BrokenError(Reason.FLOW_CONTROL_ERROR, "a window opens too far, or not")
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
                self.send_reset(stream, reason)
                yield StreamReset(stream, by_client=False)
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


def _unpadded(payload: bytes) -> bytes:
    padding = payload[0] if payload else len(payload)
    if padding >= len(payload):
        raise BrokenError(Reason.PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - padding]
