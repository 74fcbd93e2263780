"""A call that arrives in one read means the same as one that arrives byte by byte."""

from __future__ import annotations

from typing import Any

from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from mlctl.services.online.grpc.http2 import frames
from mlctl.services.online.grpc.http2.core import Core
from mlctl.services.online.grpc.http2.events import (
    ControlFrame,
    DataReceived,
    HeadersReceived,
    WholeCallReceived,
    WindowOpened,
)
from mlctl.services.online.grpc.http2.frames import BrokenError, frame
from mlctl.services.online.grpc.http2.hpack import encode
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


def call(
    stream: int, block: bytes, data: bytes, update: int | None = None, *, apart: bool = False
) -> bytes:
    """The frames of a call, whose end is in a frame `apart` or in that of the data."""
    asked = frame(frames.HEADERS, frames.END_HEADERS, stream, block)
    if update is not None:
        asked += frame(frames.WINDOW_UPDATE, 0, stream, frames.NUMBER.pack(update))
    if apart:
        asked += frame(frames.DATA, 0, stream, data)
        data = b""
    return asked + frame(frames.DATA, frames.END_STREAM, stream, data)


@st.composite
def received(draw: st.DrawFn) -> list[bytes]:
    """What one connection reads: mostly calls, some with a byte changed, cut, or with another."""
    found, stream = [], 1
    for block in draw(st.lists(st.sampled_from([*BLOCKS[:1] * 4, *BLOCKS]), max_size=12)):
        update = draw(st.sampled_from([None, None, 5, 0, frames.MAX_WINDOW]))
        body, apart = draw(st.binary(max_size=8)), draw(st.booleans())
        data = bytearray(call(stream, block, body, update, apart=apart))
        stream += draw(STEP)
        kind = draw(st.sampled_from(["whole"] * 6 + ["changed", "cut", "more"]))
        if kind == "changed":
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        elif kind == "more":
            data += draw(st.sampled_from([PING, HELLO, b"\0", bytes(data)]))
        at = draw(st.integers(0, len(data))) if kind == "cut" else len(data)
        found += [part for part in (bytes(data[:at]), bytes(data[at:])) if part]
    return found


def _ends(found: list[Any], event: DataReceived) -> bool:
    """Whether `event` is the end of the last one's stream in a frame of its own."""
    last = found[-1] if found else None
    return isinstance(last, DataReceived) and event == (last.stream, b"", 0, True)


def test_whole_calls__end_in_a_frame_of_its_own__arrives_whole() -> None:
    core = Core()
    list(core.receive(HELLO))
    data = call(1, BLOCKS[0], b"abc", apart=True) + call(3, BLOCKS[0], b"d")
    found = [(event.stream, event.data) for event in core.receive(data)]  # type: ignore[union-attr]
    assert found == [(1, b"abc"), (3, b"d")]


def receive(core: Core, pieces: list[bytes]) -> list[Any]:
    """The events of `pieces`; a call in whole as the events of its parts, without the noise."""
    found: list[Any] = []
    try:
        for piece in pieces:
            for event in core.receive(piece):
                if isinstance(event, WholeCallReceived):
                    size = len(event.data)
                    found.append(HeadersReceived(event.stream, event.head, ended=False))
                    found.append(DataReceived(event.stream, event.data, size, ended=True))
                elif isinstance(event, DataReceived) and _ends(found, event):
                    found[-1] = found[-1]._replace(ended=True)
                elif not isinstance(event, ControlFrame | WindowOpened):
                    found.append(event)
    except BrokenError as error:
        found.append(error.reason)
    return found


@given(received())
def test_whole_calls__in_one_read_or_byte_by_byte__mean_the_same(pieces: list[bytes]) -> None:
    whole, single = Core(), Core()
    for piece in (HELLO, *pieces):
        expected = receive(single, [bytes([byte]) for byte in piece])
        assert receive(whole, [piece]) == expected
        if expected and isinstance(expected[-1], frames.Reason):
            return
        assert whole.last_stream == single.last_stream
