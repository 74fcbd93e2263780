"""Messages that wait for their batch, with their bytes and when they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import itemgetter

from services.stream.base import Message
from services.stream.window import BatchingWindow

_VALUE = itemgetter(2)


class Buffer:
    """In the order of their polls; `since` is when the oldest came."""

    def __init__(self, window: BatchingWindow) -> None:
        self.full = False
        self._window = window
        self._waiting: list[Message] = []
        self._size = 0
        # How many came when, oldest first.
        self._arrivals: deque[tuple[int, float]] = deque()

    @property
    def messages(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def since(self) -> float:
        return self._arrivals[0][1]

    def add(self, messages: Sequence[Message], now: float) -> None:
        self._waiting += messages
        self._size += sum(map(len, map(_VALUE, messages)))
        self._arrivals.append((len(messages), now))

    def room(self) -> int:
        """How many more may come: none from the high mark on until few are left."""
        count, most = len(self._waiting), self._window.high
        if self._size:
            most = min(most, 4 * self._window.goals.size * count // self._size)
        if count >= most:
            self.full = True
        elif count <= most // 2:
            self.full = False
        return 0 if self.full else max(1, most - count)

    def take(self) -> tuple[list[Message], float]:
        """The next batch, and when its oldest message came; at least one message."""
        count, since = self._count(), self.since
        taken = self._waiting[:count]
        del self._waiting[:count]
        self._size -= sum(map(len, map(_VALUE, taken)))
        while count:
            came, when = self._arrivals.popleft()
            if came > count:
                self._arrivals.appendleft((came - count, when))
            count -= min(came, count)
        return taken, since

    def drop(self, partitions: Collection[str]) -> None:
        """Forget messages of `partitions`."""
        gone = set(partitions)
        kept = [message for message in self._waiting if message.partition not in gone]
        if len(kept) < len(self._waiting):
            since = self.since
            self.clear()
            if kept:
                self.add(kept, since)

    def clear(self) -> None:
        self._waiting, self._size = [], 0
        self._arrivals.clear()

    def _count(self) -> int:
        """As many as the window wants, and as its bytes allow."""
        count = min(len(self._waiting), self._window.limit)
        if self._size <= self._window.goals.size:
            return count
        sizes = accumulate(map(len, map(_VALUE, self._waiting[:count])))
        return max(1, sum(1 for size in sizes if size <= self._window.goals.size))
