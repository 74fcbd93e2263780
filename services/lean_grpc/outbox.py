"""What a connection sends: at once where the client's windows allow it, else when they do.

What waits is parked per stream, in order. Nothing is sent while the transport is full, so
that a slow reader's answers are in one place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from h2.connection import H2Connection
from h2.errors import ErrorCodes

from services.lean_grpc.hpack import Fields


class _Parked:
    """The rest of one stream."""

    __slots__ = ("drained", "ending", "pieces")

    def __init__(self) -> None:
        self.pieces: deque[memoryview] = deque()
        self.ending: tuple[Fields, bool] | None = None
        self.drained: asyncio.Future[None] | None = None


class Outbox:
    """The sending half of one connection; `wake` is called when there is something to write."""

    def __init__(self, core: H2Connection, wake: Callable[[], None]) -> None:
        self._core = core
        self._wake = wake
        self._parked: dict[int, _Parked] = {}
        self._refused: set[int] = set()
        self.paused = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is parked."""
        return not self._parked

    def start(self, stream: int, headers: Fields) -> None:
        """Send the headers that begin an answer."""
        self._core.send_headers(stream, headers)
        self._wake()

    def message(self, stream: int, data: bytes) -> bool:
        """Send a message, or what the windows allow of it; whether that was all."""
        core = self._core
        if stream not in self._parked and not self.paused:
            size = len(data)
            if size <= core.max_outbound_frame_size and (
                size <= core.local_flow_control_window(stream)
            ):
                core.send_data(stream, data)
                self._wake()
                return True
        parked = self._parked.setdefault(stream, _Parked())
        parked.pieces.append(memoryview(data))
        self._push(stream, parked)
        return stream not in self._parked

    def end(self, stream: int, trailers: Fields, *, refuse_rest: bool) -> None:
        """End an answer, or answer with trailers alone; `refuse_rest` of what is asked still."""
        parked = self._parked.get(stream)
        if parked is not None:
            parked.ending = trailers, refuse_rest
            return
        self._core.send_headers(stream, trailers, end_stream=True)
        if refuse_rest:
            self._refused.add(stream)
        self._wake()

    def refuse_rest(self, stream: int) -> None:
        """More came of a stream that was answered: tell the client to send no more of it.

        Not at once: most have sent all before they hear of the answer, and some take the end
        of what they still send for their call's failure.
        """
        if stream in self._refused:
            self.reset(stream, ErrorCodes.NO_ERROR)

    def refuse_rests(self) -> None:
        """The same for all that were answered and neither ended nor reset since."""
        for stream in list(self._refused):
            self.refuse_rest(stream)

    def ended(self, stream: int) -> None:
        """The client sends no more of the stream."""
        self._refused.discard(stream)

    def reset(self, stream: int, code: ErrorCodes) -> None:
        """End a stream at once, and drop what is parked."""
        self.forget(stream)
        self._core.reset_stream(stream, code)
        self._wake()

    def forget(self, stream: int) -> None:
        """The stream is no more: drop what is parked."""
        self._refused.discard(stream)
        parked = self._parked.pop(stream, None)
        if parked is not None and parked.drained is not None:
            parked.drained.cancel()

    def clear(self) -> None:
        """The connection is gone."""
        self._refused.clear()
        for stream in list(self._parked):
            self.forget(stream)

    def is_parked(self, stream: int) -> bool:
        """Whether something of the stream waits."""
        return stream in self._parked

    async def drained(self, stream: int) -> None:
        """Wait until nothing of the stream is parked; cancelled if the stream ends before."""
        parked = self._parked.get(stream)
        if parked is not None:
            if parked.drained is None:
                parked.drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(parked.drained)

    def resume(self) -> None:
        """Windows were opened, or the transport takes more: send what can be sent, in turns."""
        for stream in list(self._parked):
            parked = self._parked.pop(stream)
            self._parked[stream] = parked  # behind the others, for the next time
            self._push(stream, parked)

    def _push(self, stream: int, parked: _Parked) -> None:
        core = self._core
        while parked.pieces and not self.paused:
            piece = parked.pieces[0]
            room = min(core.local_flow_control_window(stream), core.max_outbound_frame_size)
            if room <= 0:
                return
            core.send_data(stream, piece[:room])
            self._wake()
            if len(piece) <= room:
                parked.pieces.popleft()
            else:
                parked.pieces[0] = piece[room:]
        if parked.pieces:
            return
        del self._parked[stream]
        if parked.drained is not None and not parked.drained.done():
            parked.drained.set_result(None)
        if parked.ending is not None:
            trailers, refuse_rest = parked.ending
            self.end(stream, trailers, refuse_rest=refuse_rest)
