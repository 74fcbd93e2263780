"""How many messages make a batch, when it begins, and how many may wait. Pure.

A batch costs something even if it is small: a commit, a call. So it waits for more messages,
but never longer than it would take itself: that at most doubles the latency of a quiet stream,
and a busy one has its next batch together before the last one is done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from services.runtime.batch_costs import BatchCosts

# Before anything was measured; and by how much a batch may be larger than any before it.
_FIRST = 256
_GROWTH = 4
# Of the latency goal: for waiting, and for the batch itself. Another one may be before it.
_WAITING, _WORKING = 0.25, 0.4


@dataclass(frozen=True, slots=True)
class BatchGoals:
    """`latency_s` from a message's arrival here to its commit; a batch's most messages, bytes."""

    latency_s: float = 0.1
    messages: int = 8192
    size: int = 16 << 20


class BatchingWindow:
    """The policy; `costs` are seconds of whole batches by messages."""

    def __init__(self, goals: BatchGoals, costs: BatchCosts | None = None) -> None:
        self.goals = goals
        self._costs = costs or BatchCosts()
        self._largest = 0
        self.limit = min(_FIRST, goals.messages)

    def observe(self, messages: int, seconds: float) -> None:
        """A batch took so long, from its decoding to the end of its commit."""
        self._costs.observe(messages, seconds)
        self._largest = max(self._largest, messages)
        self.limit = self._best()

    def linger(self, messages: int) -> float:
        """Seconds that a batch may wait for more than the `messages` that it has."""
        if messages >= self.limit:
            return 0.0
        return min(self._costs.seconds(max(1, messages)), _WAITING * self.goals.latency_s)

    @property
    def high(self) -> int:
        """As many messages may wait here; then no more are asked for."""
        return 4 * self.limit

    def _best(self) -> int:
        """The largest batch that keeps the goal; it doubles so that costs can be learned."""
        most = min(self.goals.messages, max(_FIRST, _GROWTH * self._largest))
        best = 1
        while 2 * best <= most and self._costs.seconds(2 * best) <= _WORKING * self.goals.latency_s:
            best *= 2
        return best


class DeadRate:
    """How many of the newest messages were dead letters; `share` of them is allowed.

    Fewer than `least` dead ones tell nothing.
    """

    def __init__(self, share: float, newest: int = 1000, least: int = 20) -> None:
        self.share = share
        self._newest = newest
        self._least = least
        self._batches: deque[tuple[int, int]] = deque()
        self._messages = self._dead = 0

    def room(self, messages: int) -> int:
        """How many of the next `messages` may be dead; negative if none and that is too many."""
        self._forget(messages)
        allowed = int(self.share * (self._messages + messages) + 1e-9)
        return max(self._least - 1, allowed) - self._dead

    def observe(self, messages: int, dead: int) -> None:
        """A batch was committed."""
        self._batches.append((messages, dead))
        self._messages += messages
        self._dead += dead

    def _forget(self, coming: int) -> None:
        """Leave out what is older than the newest messages, `coming` ones included."""
        while self._batches and (self._messages + coming - self._batches[0][0] >= self._newest):
            messages, dead = self._batches.popleft()
            self._messages -= messages
            self._dead -= dead
