"""Events of the HTTP/2 core: what a client sent. Named tuples, one for nearly every frame."""

from __future__ import annotations

from typing import NamedTuple

from mlctl.services.online.grpc.http2.head import CallHead


class WholeCallReceived(NamedTuple):
    """A call that arrived whole: its head, and all its data in one frame."""

    stream: int
    head: CallHead
    data: bytes


class HeadersReceived(NamedTuple):
    """A call began; it has no data if the headers `ended` it."""

    stream: int
    head: CallHead
    ended: bool


class DataReceived(NamedTuple):
    """Data of a call, which may be empty; it used `size` bytes of the windows, padding included."""

    stream: int
    data: bytes
    size: int
    ended: bool


class StreamReset(NamedTuple):
    """A stream was reset by the client or by the core, which just forgot it.

    No other event is between: a connection may wait for its turn after any event, and a call must
    not answer on a stream that is gone.
    """

    stream: int
    by_client: bool


class WindowOpened(NamedTuple):
    """The client takes more bytes of a stream, or of the connection if `stream` is 0."""

    stream: int


class ControlFrame(NamedTuple):
    """A frame that carries no call; its `cost` is charged to the client's rate limit.

    A proxy passes on the `forwarded` ones of its clients: resets, and data that comes late.
    """

    cost: float
    forwarded: bool = False


class PongReceived(NamedTuple):
    """The answer to a ping."""

    data: bytes


class GoAwayReceived(NamedTuple):
    """The client begins no more calls, for `reason`."""

    reason: int


Event = (
    WholeCallReceived
    | HeadersReceived
    | DataReceived
    | StreamReset
    | WindowOpened
    | ControlFrame
    | PongReceived
    | GoAwayReceived
)
