"""A call that is all there is of its head the second time means what it would byte by byte."""

from __future__ import annotations

from typing import Any

from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from services.online.grpc.http2 import frames
from services.online.grpc.http2.core import Core
from services.online.grpc.http2.events import Whole
from services.online.grpc.http2.frames import BrokenError, frame
from services.online.grpc.http2.hpack import encode
from services.online.grpc.http2.sending import CONNECTION_WINDOW_BYTES, MAX_STREAMS
from tests.services.online.grpc.http2.conftest import head

HELLO = frames.PREFACE + frame(frames.SETTINGS, 0, 0)
PING = frame(frames.PING, 0, 0, bytes(8))
# Without a table, with one, and what means something else after the next that adds to it.
BLOCKS = (
    encode(tuple(head())),
    encode(tuple(head(b"/other"))),
    Encoder().encode(head()),
    b"\x83\x86\x84" + b"\x40\x01a\x01" + b"b",
    b"\x83\x86\x84\xbe",
    b"\x83\x86",
    b"\x20",
)
STEP = st.sampled_from([0, 2, 2, 2, 2, 2, 4])


def call(stream: int, block: bytes, data: bytes, update: int | None = None) -> bytes:
    asked = frame(frames.HEADERS, frames.END_HEADERS, stream, block)
    if update is not None:
        asked += frame(frames.WINDOW_UPDATE, 0, stream, frames.NUMBER.pack(update))
    return asked + frame(frames.DATA, frames.END_STREAM, stream, data)


@st.composite
def received(draw: st.DrawFn) -> list[bytes]:
    """What one connection reads: mostly calls, some with a byte changed, cut, or with another."""
    found, stream = [], 1
    for block in draw(st.lists(st.sampled_from([*BLOCKS[:1] * 4, *BLOCKS]), max_size=12)):
        update = draw(st.sampled_from([None, None, 5, 0, frames.MAX_WINDOW]))
        data = bytearray(call(stream, block, draw(st.binary(max_size=8)), update))
        stream += draw(STEP)
        kind = draw(st.sampled_from(["whole"] * 6 + ["changed", "cut", "more"]))
        if kind == "changed":
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        elif kind == "more":
            data += draw(st.sampled_from([PING, HELLO, b"\0", bytes(data)]))
        at = draw(st.integers(0, len(data))) if kind == "cut" else len(data)
        found += [part for part in (bytes(data[:at]), bytes(data[at:])) if part]
    return found


def tell(core: Core, data: bytes, *, shortly: bool) -> list[Any]:
    again = core.again(data) if shortly else None
    if again is not None:
        return [Whole(*again)]
    found: list[Any] = []
    try:
        found += core.receive(data)
    except BrokenError as error:
        found.append(error.reason)
    return found


def state(core: Core) -> tuple[Any, ...]:
    streams = {number: (s.window, s.room, s.ended) for number, s in core.streams.items()}
    return core.last_stream, core._room, bytes(core._tail), core.out, streams


@given(received())
def test_it_means_the_same(pieces: list[bytes]) -> None:
    short, long = Core(), Core()
    for piece in (HELLO, *pieces):
        expected = tell(long, piece, shortly=False)
        assert tell(short, piece, shortly=True) == expected
        assert state(short) == state(long)
        if expected and isinstance(expected[-1], frames.Reason):
            return
        for event in expected:
            if isinstance(event, Whole) and event.stream in long.streams:  # else it was reset
                for core in (short, long):
                    core.turn_away(event.stream, BLOCKS[0])


def greeted() -> Core:
    core = Core()
    list(core.receive(HELLO))
    return core


def test_only_the_last_head_is_known_and_only_while_the_table_is_the_same() -> None:
    core = greeted()
    first = call(1, BLOCKS[0], b"x")
    assert core.again(first) is None
    (event,) = core.receive(first)
    assert isinstance(event, Whole)
    assert core.again(call(3, BLOCKS[0], b"yz", 5)) == (3, event.head, b"yz")
    assert core.again(call(5, BLOCKS[1], b"x")) is None
    list(core.receive(call(5, BLOCKS[3], b"x")))
    assert core.again(call(7, BLOCKS[0], b"x")) is None
    assert core.last_stream == 5


def test_what_is_not_alone_or_not_right_is_left_to_the_long_way() -> None:
    core = greeted()
    list(core.receive(call(1, BLOCKS[0], b"x")))
    right = call(3, BLOCKS[0], b"x")
    wrong = (
        *(right[:size] for size in range(len(right))),
        right + b"\0",
        call(1, BLOCKS[0], b"x"),
        call(2, BLOCKS[0], b"x"),
        call(3, BLOCKS[0], b"x", 0),
        call(3, BLOCKS[0], b"x", frames.MAX_WINDOW),
        call(3, BLOCKS[0], bytes(frames.DEFAULT_FRAME_BYTES * 5)),
    )
    for data in wrong:
        assert core.again(data) is None
    assert core.last_stream == 1
    core._room = 0
    assert core.again(right) is None
    core._room = CONNECTION_WINDOW_BYTES
    core.streams |= dict.fromkeys(range(1001, 1001 + 2 * MAX_STREAMS, 2), core.streams[1])
    assert core.again(right) is None
    core.streams.clear()
    assert core.again(right) is not None
