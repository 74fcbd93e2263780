"""What a client may ask of a connection beside calls: pings, settings, resets, empty frames.

A leaky bucket: each costs a drop, some run out every second, and what is answered takes
some out as well. An honest client's never fills.
"""

from __future__ import annotations

CAPACITY = 1000.0
PER_SECOND = 200.0
PER_ANSWER = 2.0


class Bucket:
    """One connection's; `now` is in monotonic seconds."""

    __slots__ = ("_at", "_level")

    def __init__(self, now: float) -> None:
        self._at = now
        self._level = 0.0

    def add(self, now: float, cost: float = 1.0) -> bool:
        """Whether it still holds after so many cost more."""
        self._level = max(0.0, self._level - (now - self._at) * PER_SECOND) + cost
        self._at = now
        return self._level <= CAPACITY

    def answered(self) -> None:
        """A message was sent."""
        if self._level:
            self._level = max(0.0, self._level - PER_ANSWER)
