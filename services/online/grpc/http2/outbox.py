"""The answers of a connection: sent as soon as the client's windows allow it.

Unsent bytes are parked per stream, in order. Nothing is sent while the transport is full, so that
a slow reader's answers are in one place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from mlctl.services.online.grpc.http2.core import Sending
from mlctl.services.online.grpc.http2.frames import Reason
from mlctl.services.online.grpc.http2.head import HEADERS, OK_TRAILERS, Fields
from mlctl.services.online.grpc.http2.hpack import encode
from mlctl.services.online.grpc.http2.messages import frame

# A client must read so much of a parked answer in its time.
_STALL_BYTES = 4 << 10


class _Parked:
    """The unsent rest of one stream; `read` are the bytes that its client took in this period."""

    __slots__ = ("drained", "ending", "pieces", "read", "timer")

    def __init__(self) -> None:
        self.pieces: deque[memoryview] = deque()
        self.ending: tuple[Fields, bool] | None = None
        self.drained: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.read = 0

    def stop_timer(self) -> None:
        """Stop the time limit: everything is sent."""
        if self.timer is not None:
            self.timer.cancel()


class Parking:
    """The number of bytes that all connections of a server have parked."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class SendQueue:
    """The sending half of one connection; `wake` is called when there is something to write.

    Parked bytes are counted in `parking` as well.
    """

    def __init__(self, core: Sending, wake: Callable[[], None], parking: Parking) -> None:
        self._core = core
        self._wake = wake
        self._parked: dict[int, _Parked] = {}
        self._unfinished: set[int] = set()
        self.paused = False
        self._parking = parking
        self.size = 0  # in bytes, of what is parked

    def _count(self, parked: int) -> None:
        self.size += parked
        self._parking.size += parked

    @property
    def is_empty(self) -> bool:
        """Whether nothing is parked."""
        return not self._parked

    def start(self, stream: int, headers: Fields) -> None:
        """Send the headers of an answer."""
        self.start_block(stream, encode(headers))

    def start_block(self, stream: int, block: bytes) -> None:
        """Send headers that more of the answer follows."""
        self._core.headers(stream, block, end=False)
        self._wake()

    def message(self, stream: int, data: bytes) -> bool:
        """Send a message, or the part that the windows allow; return whether that was all."""
        core = self._core
        free = stream not in self._parked and not self.paused
        if free and len(data) <= core.may_send(stream):
            core.send_data(stream, data)
            self._wake()
            return True
        parked = self._parked.setdefault(stream, _Parked())
        parked.pieces.append(memoryview(data))
        self._count(len(data))
        self._push(stream, parked)
        return stream not in self._parked

    def answer(self, stream: int, message: bytes, seconds: float) -> None:
        """Send a whole answer of one message, in any number of frames."""
        if not self.paused and self._core.answer(stream, message):
            self._wake()
        else:
            self.start(stream, HEADERS)
            self.message(stream, frame(message))
            self.end(stream, OK_TRAILERS, reset_unfinished=False, seconds=seconds)

    def respond(
        self, stream: int, block: bytes, body: bytes, *, reset_unfinished: bool, seconds: float
    ) -> None:
        """Send a whole response of HTTP, whose headers are in `block`; for the rest see `end`."""
        if not self.paused and self._core.respond(stream, block, body):
            self._wake()
        else:
            self.start_block(stream, block)
            self.message(stream, body)
            self.end(stream, (), reset_unfinished=reset_unfinished, seconds=seconds)

    def end(self, stream: int, trailers: Fields, *, reset_unfinished: bool, seconds: float) -> None:
        """End an answer, or answer with trailers alone; only HTTP has no trailers.

        With `reset_unfinished` the client may still be sending, and is stopped if it goes on. The
        stream is reset if the client reads next to nothing of the answer for `seconds`.
        """
        parked = self._parked.get(stream)
        if parked is not None:
            parked.ending = trailers, reset_unfinished
            self._watch(stream, parked, seconds)
            return
        self._end(stream, trailers, reset_unfinished=reset_unfinished)

    def _watch(self, stream: int, parked: _Parked, seconds: float) -> None:
        parked.read = 0
        loop = asyncio.get_running_loop()
        parked.timer = loop.call_later(seconds, self._check_read, stream, parked, seconds)

    def _check_read(self, stream: int, parked: _Parked, seconds: float) -> None:
        if parked.read >= _STALL_BYTES:
            self._watch(stream, parked, seconds)
        else:
            self.reset(stream, Reason.CANCEL)

    def _end(self, stream: int, trailers: Fields, *, reset_unfinished: bool) -> None:
        if trailers:
            self._core.send_headers(stream, trailers, end=True)
        else:
            self._core.end_data(stream)
        if reset_unfinished:
            self._unfinished.add(stream)
        self._wake()

    def reset_unfinished(self, stream: int) -> None:
        """Stop a client that sends more of a call that was answered.

        Not with the answer: most clients have sent everything by then, and some take the reset for
        the call's failure.
        """
        if stream in self._unfinished:
            self.reset(stream, Reason.NO_ERROR)

    def reset_all_unfinished(self) -> None:
        """Stop the clients of all answered calls that neither ended nor were reset since."""
        for stream in list(self._unfinished):
            self.reset_unfinished(stream)

    def ended(self, stream: int) -> None:
        """Record that the client has ended its half of the stream."""
        self._unfinished.discard(stream)

    def reset(self, stream: int, reason: Reason) -> None:
        """Reset a stream, and drop its parked bytes."""
        self.forget(stream)
        self._core.send_reset(stream, reason)
        self._wake()

    def forget(self, stream: int) -> None:
        """Drop the parked bytes of a stream that has ended."""
        self._unfinished.discard(stream)
        parked = self._parked.pop(stream, None)
        if parked is not None:
            self._count(-sum(map(len, parked.pieces)))
            parked.stop_timer()
            if parked.drained is not None:
                parked.drained.cancel()

    def clear(self) -> None:
        """Drop everything: the connection is closed."""
        self._unfinished.clear()
        for stream in list(self._parked):
            self.forget(stream)

    async def drained(self, stream: int) -> None:
        """Wait until nothing of the stream is parked; cancelled if the stream ends before."""
        parked = self._parked.get(stream)
        if parked is not None:
            if parked.drained is None:
                parked.drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(parked.drained)

    def resume(self) -> None:
        """Send what the windows and the transport allow now, stream by stream."""
        for stream in list(self._parked):
            if self._core.window <= 0:
                return
            self.resume_one(stream)

    def resume_one(self, stream: int) -> None:
        """Send the parked bytes of one stream, if it has any."""
        parked = self._parked.pop(stream, None)
        if parked is not None:
            self._parked[stream] = parked  # behind the others, for the next time
            self._push(stream, parked)

    def _push(self, stream: int, parked: _Parked) -> None:
        core = self._core
        while parked.pieces and not self.paused:
            piece = parked.pieces[0]
            room = core.may_send(stream)
            if room <= 0:
                return
            core.send_data(stream, piece[:room])
            sent = min(room, len(piece))
            parked.read += sent
            self._count(-sent)
            self._wake()
            if len(piece) <= room:
                parked.pieces.popleft()
            else:
                parked.pieces[0] = piece[room:]
        if parked.pieces:
            return
        del self._parked[stream]
        parked.stop_timer()
        if parked.drained is not None and not parked.drained.done():
            parked.drained.set_result(None)
        if parked.ending is not None:
            trailers, reset_unfinished = parked.ending
            self._end(stream, trailers, reset_unfinished=reset_unfinished)
