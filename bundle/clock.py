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
