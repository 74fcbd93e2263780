"""Batching policy of a stream: how large a batch is, when it starts, and how many messages wait.

Pure: no I/O and no clock; callers pass times in seconds.

Each batch has fixed costs: a commit and a call of the model. So it waits for more messages, but
never longer than it would take itself: that at most doubles the latency of a quiet stream, and a
busy stream has its next batch together before the last one is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.stream.base import Message

# The limit before anything was measured, and its growth over the largest batch so far.
_FIRST_LIMIT = 256
_GROWTH = 4
# Shares of the latency goal: for waiting, and for the batch itself; another batch may be before it.
_WAITING, _WORKING = 0.25, 0.4
# A batch may take as long as so many of one message. The first estimate of a larger size is twice
# that of its half, so a factor of 2 would try none.
_ALONE = 2.5
# After so many full batches in a row the next larger size is measured again.
_FULL_BATCHES = 16
_VALUE = itemgetter(2)


@dataclass(frozen=True, slots=True)
class BatchGoals:
    """Limits of a batch: seconds from a message's arrival to its commit, messages, and bytes."""

    latency_s: float = 0.1
    messages: int = 8192
    size: int = 16 << 20


class BatchingWindow:
    """Chooses the size of batches from `costs`, the seconds of whole batches by messages."""

    def __init__(self, goals: BatchGoals, costs: BatchCosts | None = None) -> None:
        self.goals = goals
        self._costs = costs or BatchCosts()
        self._largest = 0
        self._full = 0
        self.limit = min(_FIRST_LIMIT, goals.messages)

    def observe(self, messages: int, seconds: float) -> None:
        """Record the time of a batch from its decoding to the end of its commit."""
        self._costs.observe(messages, seconds)
        self._full = self._full + 1 if messages >= self.limit else 0
        self._largest = max(self._largest, messages)
        bound = max(_FIRST_LIMIT, _GROWTH * self._largest)
        # A batch of one message may already take longer, as with a distant broker: more messages
        # in a batch then keep up with the stream, and cost hardly any latency.
        alone = self._costs.median_seconds.get(1, 0.0)
        working = max(_WORKING * self.goals.latency_s, _ALONE * alone)
        self.limit = 1
        while self.limit < (larger := self._larger()) <= bound:
            if self._costs.seconds(larger) > working:
                break
            self.limit = larger
        # A stall in the only batch of a size would keep all later batches below that size.
        if self._full >= _FULL_BATCHES and self.limit < self._larger() <= bound:
            self.limit = self._larger()
            self._full = 0

    def linger(self, messages: int) -> float:
        """Return the seconds that a batch of `messages` may wait for more."""
        if messages >= self.limit:
            return 0.0
        return min(self._costs.seconds(max(1, messages)), _WAITING * self.goals.latency_s)

    @property
    def high_water(self) -> int:
        """The number of waiting messages from which on no more are fetched."""
        return 4 * self.limit

    def _larger(self) -> int:
        """Return the next limit: powers of two, so that costs of few sizes have to be learned."""
        return min(2 * self.limit, self.goals.messages)


class MessageBuffer:
    """Messages that wait for their batch, in the order of their polls."""

    def __init__(self, window: BatchingWindow) -> None:
        self.full = False
        self._window = window
        self._waiting: list[Message] = []
        self._arrived: list[float] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def since(self) -> float:
        """When the oldest message arrived."""
        return self._arrived[0]

    def add(self, messages: Sequence[Message], now: float) -> None:
        self._waiting += messages
        self._arrived += [now] * len(messages)
        self._size += _bytes_of(messages)

    def room(self) -> int:
        """Return how many messages may be fetched: none while `full`, until half is left."""
        count, bound = len(self._waiting), self._window.high_water
        if self._size:
            bound = min(bound, 4 * self._window.goals.size * count // self._size)
        if count >= bound:
            self.full = True
        elif count <= bound // 2:
            self.full = False
        return 0 if self.full else max(1, bound - count)

    def take(self) -> tuple[list[Message], float]:
        """Return the next batch of at least one message, and when its oldest arrived."""
        count, since = self._batch_size(), self.since
        taken = self._waiting[:count]
        del self._waiting[:count], self._arrived[:count]
        self._size -= _bytes_of(taken)
        return taken, since

    def drop(self, partitions: Collection[str]) -> None:
        """Remove the messages of `partitions`."""
        waiting = zip(self._waiting, self._arrived, strict=True)
        kept = [each for each in waiting if each[0].partition not in partitions]
        self._waiting = [message for message, _ in kept]
        self._arrived = [arrived for _, arrived in kept]
        self._size = _bytes_of(self._waiting)

    def clear(self) -> None:
        self._waiting, self._arrived, self._size = [], [], 0

    def _batch_size(self) -> int:
        count = min(len(self._waiting), self._window.limit)
        if self._size <= self._window.goals.size:
            return count
        sizes = accumulate(map(len, map(_VALUE, self._waiting[:count])))
        return max(1, sum(1 for size in sizes if size <= self._window.goals.size))


def _bytes_of(messages: Sequence[Message]) -> int:
    return sum(map(len, map(_VALUE, messages)))


class DeadLetterLimit:
    """Limits dead letters to a `share` of the newest messages.

    Up to `free` dead letters are always allowed: so few prove nothing.
    """

    def __init__(self, share: float, newest: int = 1000, free: int = 19) -> None:
        self.share = share
        self._newest = newest
        self._free = free
        self._batches: deque[tuple[int, int]] = deque()
        self._messages = self._dead = 0

    def room(self, messages: int) -> int:
        """Return how many of the next `messages` may be dead letters; negative if too many are."""
        self._forget(messages)
        allowed = int(self.share * (self._messages + messages) + 1e-9)
        return max(self._free, allowed) - self._dead

    def observe(self, messages: int, dead: int) -> None:
        """Record a batch that is committed."""
        self._batches.append((messages, dead))
        self._messages += messages
        self._dead += dead

    def _forget(self, coming: int) -> None:
        """Forget batches that are older than the newest messages, `coming` ones included."""
        while self._batches and (self._messages + coming - self._batches[0][0] >= self._newest):
            messages, dead = self._batches.popleft()
            self._messages -= messages
            self._dead -= dead
