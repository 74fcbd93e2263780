"""RFC 9113 by section, with frames that no client library sends: those of `hyperframe`."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from mlctl.services.online.grpc.http2.core import Core
from mlctl.services.online.grpc.http2.events import (
    ControlFrame,
    DataReceived,
    Event,
    HeadersReceived,
    StreamReset,
    WholeCallReceived,
)
from mlctl.services.online.grpc.http2.frames import PREFACE, BrokenError, Reason
from tests.services.online.grpc.http2.conftest import Fields, head
from tests.services.online.grpc.http2.test_core import resets

HELLO = PREFACE + SettingsFrame(0).serialize()
NO_ERROR, LATE = None, "late"


def wire(*frames: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in frames)


def call(stream: int = 1, fields: Fields | None = None, *, end: bool = False) -> HeadersFrame:
    frame = HeadersFrame(stream, Encoder().encode(head() if fields is None else fields))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame


def data(stream: int = 1, content: bytes = b"x", *, end: bool = False) -> DataFrame:
    frame = DataFrame(stream, content)
    if end:
        frame.flags.add("END_STREAM")
    return frame


def with_header(name: bytes, value: bytes) -> Fields:
    return [*head(), (name, value)]


def changed(name: bytes, value: bytes | None) -> Fields:
    kept = [(each, old if each != name else value) for each, old in head()]
    return [(each, new) for each, new in kept if new is not None]


# Section, frames, and how the connection ends.
CONNECTION_ERRORS = [
    ("5.1 idle", [data()], Reason.PROTOCOL_ERROR),
    ("5.1 idle", [RstStreamFrame(1)], Reason.PROTOCOL_ERROR),
    ("5.1 idle", [WindowUpdateFrame(1, 1)], Reason.PROTOCOL_ERROR),
    ("5.1 half-closed (remote)", [call(end=True), data()], Reason.STREAM_CLOSED),
    ("5.1 half-closed (remote)", [call(end=True), call(end=True)], Reason.STREAM_CLOSED),
    ("5.1 half-closed (remote)", [call(), data(end=True), data()], Reason.STREAM_CLOSED),
    ("5.1.1 even", [call(2)], Reason.PROTOCOL_ERROR),
    ("5.1.1 lower", [call(5), call(3)], Reason.PROTOCOL_ERROR),
    (
        "6.5.2 frame size",
        [SettingsFrame(0, {SettingsFrame.MAX_FRAME_SIZE: 1})],
        Reason.PROTOCOL_ERROR,
    ),
    ("6.10 continuation of nothing", [GoAwayFrame(0), ContinuationFrame(1)], Reason.PROTOCOL_ERROR),
    ("6.9.1 too large", [WindowUpdateFrame(0, 1), WindowUpdateFrame(0, 2**31 - 1)], 3),
]
STREAM_ERRORS = [
    ("8.1 trailers go on", [call(), call(fields=[(b"a", b"b")])]),
    ("8.1 pseudo-header in trailers", [call(), call(end=True)]),
    ("8.2 capital in trailers", [call(), call(fields=[(b"Capital", b"b")], end=True)]),
    ("8.2.1 line end in trailers", [call(), call(fields=[(b"a", b"b\n")], end=True)]),
    ("8.2.2 connection in trailers", [call(), call(fields=[(b"connection", b"x")], end=True)]),
    *[("8.2 name", [call(fields=with_header(name, b"x"))]) for name in (b"A", b"a b", b"a:", b"")],
    *[
        ("8.2.1 value", [call(fields=with_header(name, value))])
        for name in (b"a", b"traceparent")
        for value in (b"a\rb", b"a\nb", b"a\0b", b" a", b"\ta", b"a ", b"a\t")
    ],
    ("8.2.2 connection", [call(fields=with_header(b"connection", b"close"))]),
    ("8.2.2 te", [call(fields=with_header(b"te", b"gzip"))]),
    ("8.3 unknown", [call(fields=[(b":x", b"y"), *head()])]),
    ("8.3 order", [call(fields=[*head()[1:], head()[0]])]),
    ("8.3 twice", [call(fields=[head()[0], *head()])]),
    *[("8.3.1 missing", [call(fields=changed(name, None))]) for name in (b":method", b":path")],
    ("8.3.1 empty path", [call(fields=changed(b":path", b""))]),
    *[
        ("8.1.1 length", [call(fields=with_header(b"content-length", length)), data(end=True)])
        for length in (b"2", b"0", b"x", b"-1", b"9" * 5000)
    ],
    ("8.1.1 length", [call(fields=with_header(b"content-length", b"1"), end=True)]),
    ("8.1.1 length", [call(fields=with_header(b"content-length", b"1")), data(content=b"xy")]),
    (
        "8.1.1 length, trailers",
        [call(fields=with_header(b"content-length", b"1")), call(fields=[(b"a", b"b")], end=True)],
    ),
    ("6.9.1 too large", [call(), WindowUpdateFrame(1, 1), WindowUpdateFrame(1, 2**31 - 1)]),
]
ALLOWED = [
    ("5.1 closed, late frames", [call(), RstStreamFrame(1), data(), call(fields=[(b"a", b"b")])]),
    ("5.5 unknown frame", [PriorityFrame(1), PingFrame(0, b"12345678"), call()]),
    ("8.1 trailers", [call(), data(), call(fields=[(b"a", b"b")], end=True)]),
    ("8.1.1 length", [call(fields=with_header(b"content-length", b"1")), data(end=True)]),
    ("8.2.1 empty value", [call(fields=with_header(b"a", b""))]),
    ("8.2.1 white space within", [call(fields=with_header(b"a", b"b \t c"))]),
]


def receive(frames: list[Frame], *, bytewise: bool) -> tuple[Core, list[Event]]:
    core = Core()
    content = HELLO + wire(*frames)
    pieces = [content[at : at + 1] for at in range(len(content))] if bytewise else [content]
    return core, [event for piece in pieces for event in core.receive(piece)]


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(("section", "frames", "reason"), CONNECTION_ERRORS)
def test_connection__against_the_section__ends(
    section: str, frames: list[Frame], reason: int, bytewise: bool
) -> None:
    with pytest.raises(BrokenError) as caught:
        receive(frames, bytewise=bytewise)
    assert caught.value.reason == reason, section


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(("section", "frames"), STREAM_ERRORS)
def test_stream__against_the_section__is_reset_and_charged(
    section: str, frames: list[Frame], bytewise: bool
) -> None:
    core, events = receive(frames, bytewise=bytewise)
    assert [stream for stream, _ in resets(core)] == [1], section
    assert not core.streams
    # A reset costs the client as much as a frame without a call, whoever sends it.
    assert sum(each.cost for each in events if isinstance(each, ControlFrame)) >= 2.0  # with hello
    assert isinstance(next(iter(core.receive(wire(call(3))))), HeadersReceived)


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(("section", "frames"), ALLOWED)
def test_stream__within_the_section__is_served(
    section: str, frames: list[Frame], bytewise: bool
) -> None:
    core, events = receive(frames, bytewise=bytewise)
    assert not resets(core), section
    assert any(isinstance(event, HeadersReceived | WholeCallReceived) for event in events)


@pytest.mark.parametrize(
    "frame",
    [
        SettingsFrame(0, flags=["ACK"]),
        SettingsFrame(0),
        PingFrame(0, b"12345678"),
        PingFrame(0, b"12345678", flags=["ACK"]),
        PriorityFrame(1),
        RstStreamFrame(1),
        WindowUpdateFrame(0, 1),
        WindowUpdateFrame(1, 1),
        GoAwayFrame(0),
        data(),
        data(content=b""),
        call(fields=[(b"a", b"b")]),
    ],
)
def test_frame__without_a_call__is_charged(frame: Frame) -> None:
    core, _ = receive([call(), RstStreamFrame(1)], bytewise=False)
    events = list(core.receive(wire(frame)))
    assert sum(each.cost for each in events if isinstance(each, ControlFrame)) >= 0.125


@pytest.mark.parametrize("frame", [RstStreamFrame(1), data(), data(content=b"")])
def test_frame__that_a_proxy_forwards__is_marked(frame: Frame) -> None:
    core, events = receive([call(), RstStreamFrame(1)], bytewise=False)
    found = [events[-1], *core.receive(wire(frame))]
    assert [each.forwarded for each in found if isinstance(each, ControlFrame)] == [True, True]
    others = core.receive(wire(PingFrame(0, b"12345678"), WindowUpdateFrame(0, 1)))
    assert not any(each.forwarded for each in others if isinstance(each, ControlFrame))


@pytest.mark.parametrize("begun", [False, True])
def test_data__of_one_byte_each__ends_the_stream_and_is_charged(*, begun: bool) -> None:
    """An answer in place of a reset: to a proxy, a server that resets calls is one that fails."""
    core, _ = receive([call(), *[data() for _ in range(1000)]], bytewise=False)
    assert not resets(core)
    if begun:
        core.send_headers(1, ((b":status", b"200"),))
    core.out.clear()
    events = list(core.receive(wire(*[data() for _ in range(100)])))
    assert StreamReset(1, by_client=False) in events
    assert ControlFrame(1.0) in events
    if begun:
        assert resets(core) == [(1, Reason.ENHANCE_YOUR_CALM)]
    else:
        assert b"429" in b"".join(core.out)
        assert resets(core) == [(1, Reason.NO_ERROR)]
    small, events = receive([call(), *[data(content=bytes(16))] * 5000], bytewise=False)
    assert not resets(small)
    assert sum(isinstance(event, DataReceived) for event in events) == 5000
