"""Clocks that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds of two clocks: `monotonic` for intervals, `wall` for timestamps."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """A clock for tests, which moves only by `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds` (not negative)."""
        if seconds < 0:
            raise ValueError("a clock does not run backwards")
        self._now += seconds
