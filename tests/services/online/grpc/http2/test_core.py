"""The framing, held against h2's client side, and against clients that break the rules."""

from __future__ import annotations

import pytest
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from mlctl.services.online.grpc.http2 import frames
from mlctl.services.online.grpc.http2.core import (
    CONNECTION_WINDOW_BYTES,
    MAX_HEADER_BYTES,
    MAX_STREAMS,
    WINDOW_BYTES,
    Core,
)
from mlctl.services.online.grpc.http2.events import (
    ControlFrame,
    DataReceived,
    Event,
    HeadersReceived,
    StreamReset,
    WholeCallReceived,
    WindowOpened,
)
from mlctl.services.online.grpc.http2.frames import BrokenError, Reason, frame
from mlctl.services.online.grpc.http2.head import HEADERS, OK_TRAILERS
from mlctl.services.online.grpc.http2.hpack import encode
from tests.services.online.grpc.http2.conftest import INFER, framed, head

HELLO = frames.PREFACE + frame(frames.SETTINGS, 0, 0)
BLOCK = encode(tuple(head()))
DONE = frames.END_HEADERS | frames.END_STREAM
U32 = frames.NUMBER.pack


def asking(stream: int = 1, flags: int = frames.END_HEADERS, block: bytes = BLOCK) -> bytes:
    return frame(frames.HEADERS, flags, stream, block)


def told(data: bytes, core: Core | None = None) -> list[Event]:
    return list((core or Core()).receive(data))


def told_bytewise(data: bytes, core: Core) -> list[Event]:
    return [event for byte in data for event in told(bytes([byte]), core)]


def greeted() -> Core:
    core = Core()
    told(HELLO, core)
    core.out.clear()
    return core


def resets(core: Core) -> list[tuple[int, int]]:
    sent = b"".join(core.out)
    found, at = [], 0
    while at < len(sent):
        word, _, stream = frames.FRAME_HEAD.unpack_from(sent, at)
        if word & 0xFF == frames.RST_STREAM:
            found.append((stream, frames.NUMBER.unpack_from(sent, at + 9)[0]))
        at += 9 + (word >> 8)
    return found


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Reason.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)), Reason.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.SETTINGS, frames.ACK, 0), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.SETTINGS, 0, 1), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.SETTINGS, 0, 0, bytes(5)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.SETTINGS, 0, 0, b"\0\2" + U32(2)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.SETTINGS, 0, 0, b"\0\5" + U32(100)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.SETTINGS, 0, 0, b"\0\4" + U32(1 << 31)), Reason.FLOW_CONTROL_ERROR),
        (HELLO + frame(frames.PUSH_PROMISE, 0, 1, BLOCK), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.PING, 0, 0, bytes(7)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.PING, 0, 1, bytes(8)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.GOAWAY, 0, 0, bytes(7)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.GOAWAY, 0, 1, bytes(8)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.RST_STREAM, 0, 1, bytes(4)), Reason.PROTOCOL_ERROR),
        (HELLO + asking() + frame(frames.RST_STREAM, 0, 1, bytes(3)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.PRIORITY, 0, 1, bytes(4)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.WINDOW_UPDATE, 0, 0, U32(0)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.WINDOW_UPDATE, 0, 0, U32(frames.MAX_WINDOW)), 3),
        (HELLO + frame(frames.WINDOW_UPDATE, 0, 1, U32(1)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), Reason.FRAME_SIZE_ERROR),
        (HELLO + frame(frames.DATA, 0, 0), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.DATA, 0, 1), Reason.PROTOCOL_ERROR),
        (HELLO + asking() + frame(frames.DATA, frames.PADDED, 1, b"\2x"), Reason.PROTOCOL_ERROR),
        (HELLO + asking() + frame(frames.DATA, frames.PADDED, 1, b""), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.DATA, 0, 1, bytes(70_000)), Reason.FRAME_SIZE_ERROR),
        (HELLO + asking(flags=DONE) + frame(frames.DATA, 0, 1, b"x"), Reason.STREAM_CLOSED),
        (HELLO + asking(flags=DONE) + asking(flags=DONE), Reason.STREAM_CLOSED),
        (HELLO + asking(2), Reason.PROTOCOL_ERROR),
        (HELLO + asking(0), Reason.PROTOCOL_ERROR),
        (HELLO + asking(block=b"\xff\xff\xff\xff\xff\x0f"), Reason.COMPRESSION_ERROR),
        (HELLO + asking(flags=frames.WITH_PRIORITY, block=b"1234"), Reason.FRAME_SIZE_ERROR),
        (HELLO + asking(flags=0) + frame(frames.PING, 0, 0, bytes(8)), Reason.PROTOCOL_ERROR),
        (HELLO + frame(frames.CONTINUATION, 4, 1), Reason.PROTOCOL_ERROR),
        (HELLO + asking(flags=0) + frame(frames.CONTINUATION, 4, 3), Reason.PROTOCOL_ERROR),
        (
            HELLO + asking(flags=0) + 20 * frame(frames.CONTINUATION, 0, 1),
            Reason.ENHANCE_YOUR_CALM,
        ),
        (
            HELLO + asking(flags=0) + frame(frames.CONTINUATION, 4, 1, bytes(MAX_HEADER_BYTES)),
            Reason.ENHANCE_YOUR_CALM,
        ),
        (HELLO + asking(block=bytes(MAX_HEADER_BYTES + 1)), Reason.ENHANCE_YOUR_CALM),
        (
            HELLO + asking(block=bytes(MAX_HEADER_BYTES + 1)) + frame(frames.DATA, 1, 1),
            Reason.ENHANCE_YOUR_CALM,
        ),
        (HELLO + asking(block=b"\x20" * 3 + BLOCK), Reason.COMPRESSION_ERROR),
    ],
)  # fmt: skip
def test_frames__that_break_the_protocol__end_the_connection(data: bytes, reason: int) -> None:
    with pytest.raises(BrokenError) as caught:
        told(data)
    assert caught.value.reason == reason
    with pytest.raises(BrokenError) as caught:
        told_bytewise(data, Core())
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (asking() + frame(frames.WINDOW_UPDATE, 0, 1, U32(0)), Reason.PROTOCOL_ERROR),
        (
            asking() + frame(frames.WINDOW_UPDATE, 0, 1, U32(frames.MAX_WINDOW)),
            Reason.FLOW_CONTROL_ERROR,
        ),
        (asking() + asking(), Reason.PROTOCOL_ERROR),  # trailers end a stream
        (asking() + asking(flags=DONE), Reason.PROTOCOL_ERROR),  # and have no pseudo-headers
        (asking(block=encode(((b"connection", b"close"),))), Reason.PROTOCOL_ERROR),
        (
            asking(block=encode(((b"a", b"b"),))) + frame(frames.DATA, 1, 1, b"x"),
            Reason.PROTOCOL_ERROR,
        ),
    ],
)  # fmt: skip
def test_frames__that_break_a_stream__reset_it_alone(data: bytes, reason: Reason) -> None:
    core = greeted()
    told(data, core)
    assert resets(core) == [(1, reason)]
    assert isinstance(told(asking(3), core)[0], HeadersReceived)


@pytest.mark.parametrize(
    "data",
    [frame(frames.RST_STREAM, 0, 1, bytes(4)), frame(frames.WINDOW_UPDATE, 0, 1, U32(0))],
)
def test_reset__of_a_stream__is_told_before_anything_else_happens(data: bytes) -> None:
    core = greeted()
    told(asking(), core)
    after = [event for event in core.receive(data) if 1 not in core.streams]
    assert isinstance(after[0], StreamReset)


def test_flow_control__client_exceeds_its_window__stream_is_reset() -> None:
    core = greeted()
    told(asking(), core)
    chunk = frame(frames.DATA, 0, 1, bytes(1 << 14))
    for _ in range(WINDOW_BYTES >> 14):
        assert isinstance(told(chunk, core)[-1], DataReceived)
    core.give(1, 1 << 14)
    assert isinstance(told(chunk, core)[-1], DataReceived)
    assert told(chunk, core) == [StreamReset(1, by_client=False), ControlFrame(1.0)]
    assert resets(core) == [(1, Reason.FLOW_CONTROL_ERROR)]
    given_back = sum(
        frames.NUMBER.unpack(part[9:])[0]
        for part in core.out
        if part.startswith(b"\0\0\4\x08\0" + bytes(4))
    )
    assert CONNECTION_WINDOW_BYTES // 4 >= given_back >= 0
    with pytest.raises(BrokenError):
        core._take(CONNECTION_WINDOW_BYTES + 1)


def test_streams__above_the_limit__are_refused() -> None:
    core = greeted()
    for number in range(MAX_STREAMS):
        told(asking(2 * number + 1), core)
    more = 2 * MAX_STREAMS + 1
    whole = asking(more) + frame(frames.DATA, frames.END_STREAM, more, b"x")
    assert all(isinstance(event, ControlFrame) for event in told(whole, core))
    assert resets(core) == [(more, Reason.REFUSED_STREAM)]
    assert len(core.streams) == MAX_STREAMS


def test_window_update__stream_or_connection__are_told_apart() -> None:
    """Else each byte of a window would have all that waits looked at."""
    core = greeted()
    told(asking(1, DONE) + asking(3, DONE), core)
    more = frame(frames.WINDOW_UPDATE, 0, 3, U32(1)), frame(frames.WINDOW_UPDATE, 0, 0, U32(1))
    assert [event for event in told(b"".join(more), core) if type(event) is WindowOpened] == [
        WindowOpened(3)
    ]
    while core.may_send(1) > 0:
        core.send_data(1, bytes(core.may_send(1)))
    core.send_data(3, bytes(core.window))
    assert WindowOpened(0) in told(more[1], core)


def test_settings__many_in_a_frame__are_one_change() -> None:
    core = greeted()
    told(asking(), core)
    pairs = b"".join(b"\0\4" + U32(number) for number in range(5000))
    told(frame(frames.SETTINGS, 0, 0, pairs), core)
    assert core.streams[1].window == 4999
    assert core.out == [frame(frames.SETTINGS, frames.ACK, 0)]


def test_call__whole_in_one_read__is_one_event() -> None:
    data = frame(frames.DATA, frames.END_STREAM, 1, b"message")
    opening = frame(frames.WINDOW_UPDATE, 0, 1, U32(100))
    for between, window in ((b"", 65535), (opening, 65635)):
        core = greeted()
        (event,) = told(asking() + between + data, core)
        assert isinstance(event, WholeCallReceived)
        assert (event.stream, event.head.path, event.data) == (1, INFER.decode(), b"message")
        assert core.streams[1].window == window
        core = greeted()
        kinds = [type(found) for found in told_bytewise(asking() + between + data, core)]
        assert next(kind for kind in kinds if kind is not ControlFrame) is HeadersReceived
        assert kinds[-1] is DataReceived
        assert core.streams[1].window == window
    too_far = frame(frames.WINDOW_UPDATE, 0, 1, U32(frames.MAX_WINDOW))
    core = greeted()
    told(asking() + too_far + data, core)
    assert resets(core) == [(1, Reason.FLOW_CONTROL_ERROR)]


def test_frames__padding_and_priority__are_removed() -> None:
    core = greeted()
    flags = frames.END_HEADERS | frames.PADDED | frames.WITH_PRIORITY
    padded = frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\3data\0\0\0")
    asked, sent = told(
        asking(flags=flags, block=b"\2" + bytes(5) + BLOCK + bytes(2)) + padded, core
    )
    assert isinstance(asked, HeadersReceived)
    assert sent == DataReceived(1, b"data", 8, ended=True)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=20), st.booleans())
def test_receive__any_bytes__are_events_or_an_error(parts: list[bytes], polite: bool) -> None:
    core = greeted() if polite else Core()
    try:
        for part in parts:
            told(part, core)
    except BrokenError:
        return
    assert len(core._tail) <= sum(map(len, parts))


class Client:
    """h2's client, which raises whatever it does not like in what the server sends."""

    def __init__(self, draw: st.DataObject) -> None:
        config = H2Configuration(client_side=True, header_encoding=None)
        self.core = H2Connection(config)
        self.core.initiate_connection()
        self.server = Core()
        self.draw = draw
        self.sent: dict[int, bytes] = {}
        self.open: set[int] = set()
        self.came: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.answers: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.over: set[int] = set()
        self.owed: dict[int, bytes] = {}

    def exchange(self) -> None:
        """Carry what both have to say, cut anywhere, until they are silent."""
        while True:
            data = self.core.data_to_send()
            cut = self.draw.draw(st.integers(0, len(data)))
            for part in (data[:cut], data[cut:]):
                for event in self.server.receive(part):
                    self.serve(event)
            self.pay()
            out = b"".join(self.server.out)
            self.server.out.clear()
            for heard in self.core.receive_data(out):
                self.hear(heard)
            if not out and not data:
                return

    def hear(self, event: h2_events.Event) -> None:
        if isinstance(event, h2_events.DataReceived):
            stream, size = event.stream_id or 0, event.flow_controlled_length or 0
            self.answers[stream] = self.answers.get(stream, 0) + size
            self.core.acknowledge_received_data(size, stream)
        elif isinstance(event, h2_events.StreamEnded):
            self.over.add(event.stream_id or 0)

    def serve(self, event: Event) -> None:
        if isinstance(event, HeadersReceived | WholeCallReceived):
            self.came[event.stream] = getattr(event, "data", b"")
            if isinstance(event, WholeCallReceived) or event.ended:
                self.finish(event.stream)
        elif isinstance(event, DataReceived):
            self.came[event.stream] += event.data
            self.server.give(event.stream, event.size)
            if event.ended:
                self.finish(event.stream)
        elif isinstance(event, StreamReset):
            assert event.by_client
            self.owed.pop(event.stream, None)

    def finish(self, stream: int) -> None:
        self.ended.add(stream)
        answer = bytes(self.draw.draw(st.sampled_from([1, 300, 20_000, 100_000])))
        self.promised[stream] = len(framed(answer))
        if not self.server.answer(stream, answer):
            self.server.send_headers(stream, HEADERS)
            self.owed[stream] = framed(answer)

    def pay(self) -> None:
        for stream in list(self.owed):
            answer = self.owed[stream]
            while answer and (room := self.server.may_send(stream)) > 0:
                self.server.send_data(stream, answer[:room])
                answer = answer[room:]
            self.owed[stream] = answer
            if not answer:
                del self.owed[stream]
                self.server.send_headers(stream, OK_TRAILERS, end=True)

    def step(self) -> None:
        kind = self.draw.draw(st.sampled_from(["ask", "data", "reset", "ping", "window", "table"]))
        stream = self.draw.draw(st.sampled_from(sorted(self.open))) if self.open else 0
        if kind == "ask":
            stream = self.core.get_next_available_stream_id()
            extra = [(b"x", b"y" * self.draw.draw(st.sampled_from([1, 10, 5000])))]
            self.core.send_headers(stream, head(INFER, *extra))
            self.open.add(stream)
            self.sent[stream] = b""
            kind = self.draw.draw(st.sampled_from(["data", "later"]))
        if kind == "data" and stream:
            room = min(
                self.core.local_flow_control_window(stream), self.core.max_outbound_frame_size
            )
            size = min(room, self.draw.draw(st.sampled_from([0, 1, 300, 16000])))
            end = self.draw.draw(st.booleans())
            padding = self.draw.draw(st.sampled_from([None, 0])) if size < room else None
            self.core.send_data(stream, b"d" * size, end_stream=end, pad_length=padding)
            self.sent[stream] += b"d" * size
            if end:
                self.open.discard(stream)
        elif kind == "reset" and stream:
            self.core.reset_stream(stream, ErrorCodes.CANCEL)
            self.open.discard(stream)
            del self.sent[stream]
        elif kind == "ping":
            self.core.ping(b"12345678")
        elif kind == "window":
            size = self.draw.draw(st.sampled_from([0, 10, 1000, 65535]))
            self.tell(SettingCodes.INITIAL_WINDOW_SIZE, size)
        elif kind == "table":
            size = self.draw.draw(st.sampled_from([0, 100, 4096]))
            self.tell(SettingCodes.HEADER_TABLE_SIZE, size)

    def tell(self, setting: SettingCodes, value: int) -> None:
        self.exchange()  # h2 takes an earlier acknowledgement for that of all that is told
        self.core.update_settings({setting: value})


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_core__against_h2s_client__exchanges_everything(data: st.DataObject) -> None:
    client = Client(data)
    for _ in range(data.draw(st.integers(1, 25))):
        client.step()
        if data.draw(st.booleans()):
            client.exchange()
    client.tell(SettingCodes.INITIAL_WINDOW_SIZE, 1 << 20)
    for stream in sorted(client.open):
        client.core.end_stream(stream)
    client.exchange()
    assert {stream: client.came[stream] for stream in client.sent} == client.sent
    assert client.over >= client.sent.keys()
    assert {stream: client.answers[stream] for stream in client.sent} == {
        stream: client.promised[stream] for stream in client.sent
    }
    assert not client.owed
    assert not client.server.streams
