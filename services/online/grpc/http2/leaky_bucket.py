"""Limit frames other than calls: pings, settings, resets, empty frames.

A leaky bucket: each frame adds to it, it drains over time, and each response drains it further. A
well-behaved client never fills it.
"""

from __future__ import annotations

CAPACITY = 1000.0
PER_SECOND = 200.0
PER_ANSWER = 2.0


class Bucket:
    """One connection's; `now` is in monotonic seconds, `level` above zero while it drains."""

    __slots__ = ("_at", "level")

    def __init__(self, now: float) -> None:
        self._at = now
        self.level = 0.0

    def add(self, now: float, cost: float = 1.0) -> bool:
        """Add `cost`; return whether the level is within the capacity."""
        self.level = max(0.0, self.level - (now - self._at) * PER_SECOND) + cost
        self._at = now
        return self.level <= CAPACITY

    def answered(self) -> None:
        """Drain the share of one sent response."""
        self.level = max(0.0, self.level - PER_ANSWER)
