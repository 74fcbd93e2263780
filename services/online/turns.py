"""Fair turns on the event loop for connections that send more than their share.

A connection works on what it received at once, for up to its share of a loop tick. The rest
waits here with its reading paused, in a round robin with all connections that have more to do.
All turns of a tick together take about one share, so that each tick also serves the others.

The share is time, and not a count: it covers each kind of work, rejected requests included. While
connections wait, it is processor time: what other processes take of the core is no one's debt.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable
from time import monotonic, thread_time
from weakref import WeakKeyDictionary

# A few small requests.
_SHARE_SECONDS = 500e-6
# TCP_CLOSE and TCP_CLOSE_WAIT: the first byte of the kernel's tcp_info.
_ENDED = (b"\7", b"\x08")


class Turns:
    """The connections of one event loop that wait for their turn.

    `share` is the time of a turn in seconds, and `clock` measures it: the cheaper one while no
    connection waits.
    """

    def __init__(self, share: float = _SHARE_SECONDS) -> None:
        self.share = share
        self.clock = monotonic
        self._waiting: deque[tuple[asyncio.Transport, Callable[[], None], float]] = deque()
        self._scheduled = False

    def debt(self, spent: float, rested: float) -> float:
        """Return the seconds that a connection spent beyond its share; negative if none.

        It `spent` so many at once, and did no more than its share for `rested` seconds before, of
        which it could have had a part as large as those that wait now.
        """
        return spent - self.share - rested / (len(self._waiting) + 1)

    def wait(
        self, transport: asyncio.Transport, proceed: Callable[[], None], debt: float = 0.0
    ) -> None:
        """Call `proceed` in a later tick, once, after the turns of those that wait already.

        A connection with a `debt` in seconds pays it with turns; one with a negative debt comes
        first. One that its client ended is aborted instead.
        """
        join = self._waiting.append if debt >= 0.0 else self._waiting.appendleft
        join((transport, proceed, debt))
        self.clock = thread_time
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        waiting, now = self._waiting, thread_time()
        end = now + self.share
        try:
            while waiting and now < end:
                transport, proceed, debt = waiting.popleft()
                if _has_left(transport):
                    transport.abort()
                elif debt > 0.0:
                    waiting.append((transport, proceed, debt - self.share))
                    end -= self.share
                else:
                    proceed()
                    now = thread_time()
        finally:
            self._scheduled = False
            if not waiting:
                self.clock = monotonic
            self._schedule()


def _has_left(transport: asyncio.Transport) -> bool:
    """Whether the client ended its connection, which no paused reading notices."""
    if sys.platform != "linux" or transport.is_closing():
        return False
    state: bytes = transport.get_extra_info("socket").getsockopt(
        socket.IPPROTO_TCP, socket.TCP_INFO, 1
    )
    return state in _ENDED


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the turns of `loop`, which all its servers share."""
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns()
    return found
