"""Clocks that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds of three clocks: for intervals, CPU time of the calling thread, and timestamps."""

    def monotonic(self) -> float: ...

    def thread(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def thread(self) -> float:
        return time.thread_time()

    def wall(self) -> float:
        return time.time()
