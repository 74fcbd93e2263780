"""A clock that tests move by hand."""

from __future__ import annotations


class ManualClock:
    """All clocks of `mlctl.core.clock.Clock`; they move only by `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def thread(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move all clocks forward by `seconds` (not negative)."""
        if seconds < 0:
            raise ValueError("a clock does not run backwards")
        self._now += seconds
