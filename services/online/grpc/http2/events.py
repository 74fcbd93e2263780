"""What a client did, as the HTTP/2 core tells it.

Tuples, as one is made for nearly every frame.
"""

from __future__ import annotations

from typing import NamedTuple

from services.online.grpc.http2.head import CallHead


class Whole(NamedTuple):
    """A call that came at once: its head, and all its data in one frame of `size` bytes."""

    stream: int
    head: CallHead
    data: bytes


class HeadersReceived(NamedTuple):
    """A call began; it has no data if that `ended` it."""

    stream: int
    head: CallHead
    ended: bool


class Sent(NamedTuple):
    """Data of a call; with its padding it took `size` bytes of the windows. May be empty."""

    stream: int
    data: bytes
    size: int
    ended: bool


class Left(NamedTuple):
    """A stream was reset, by either side: nobody waits for it any more."""

    stream: int
    by_client: bool


class Opened(NamedTuple):
    """More can be sent: of one stream, or of any if that is 0."""

    stream: int


class Noise(NamedTuple):
    """Something that asks for nothing, `drops` of it."""

    drops: float


class Ponged(NamedTuple):
    """The answer to a ping."""

    data: bytes


class Parted(NamedTuple):
    """The client begins no more calls, for `reason`."""

    reason: int


Event = Whole | HeadersReceived | Sent | Left | Opened | Noise | Ponged | Parted
