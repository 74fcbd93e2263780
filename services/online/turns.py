"""Fair turns on the event loop for connections that send more than their share.

A connection works on what it received at once, for up to its share of a loop tick. The rest
waits here with its reading paused, in a round robin with all connections that have more to do.
All turns of a tick together take about `_TICK_SECONDS`, so that each tick also serves the others.

The share is time, and not a count: it covers each kind of work, rejected requests included.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from weakref import WeakKeyDictionary

# A few small requests.
_SHARE_SECONDS = 250e-6
_TICK_SECONDS = 1e-3


class Turns:
    """The connections of one event loop that wait for their turn.

    `share` is the time of a turn in seconds.
    """

    def __init__(self, share: float = _SHARE_SECONDS) -> None:
        self.share = share
        self._waiting: deque[tuple[Callable[[], None], float]] = deque()
        self._scheduled = False

    def wait(self, proceed: Callable[[], None], spent: float = 0.0) -> None:
        """Call `proceed` in a later tick, once, after the turns of those that wait already.

        A connection that just `spent` more seconds than its share pays for them with turns.
        """
        self._waiting.append((proceed, spent - self.share))
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        waiting, now = self._waiting, monotonic()
        end = now + _TICK_SECONDS
        try:
            while waiting and now < end:
                proceed, debt = waiting.popleft()
                if debt > 0.0:
                    waiting.append((proceed, debt - self.share))
                    end -= self.share
                else:
                    proceed()
                    now = monotonic()
        finally:
            self._scheduled = False
            self._schedule()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the turns of `loop`, which all its servers share."""
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns()
    return found
