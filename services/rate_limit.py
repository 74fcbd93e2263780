"""A limit of requests per second, as a token bucket. Pure: callers pass the time in seconds."""

from __future__ import annotations

# Sums of floats are that exact over months.
_TOLERANCE = 1e-6


class RateLimit:
    """Admit `rate` requests per second, and up to a second's worth of them, at least one, at once.

    One number describes the bucket: the time at which it is full again.
    """

    __slots__ = ("_full_at", "_interval", "_window", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._interval = 1.0 / rate
        # The bucket may be so many seconds away from full before a request finds it empty.
        self._window = max(1.0, self._interval) - self._interval
        self._full_at = 0.0

    def take(self, now: float) -> float:
        """Admit a request and return 0, or return the seconds until one will be admitted."""
        full_at = max(self._full_at, now)
        wait = full_at - now - self._window
        if wait > _TOLERANCE:
            return wait
        self._full_at = full_at + self._interval
        return 0.0
