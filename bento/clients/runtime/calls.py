"""One call: its time, and whether and when it is repeated. No I/O here."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .errors import DeadlineError, ModelError, UnavailableError

_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Retry:
    """When a call is repeated: a model answers the same question the same way, so it may be.

    Only what is worth it: a server that is overloaded, starting, stopping or not reached.
    At most `attempts` in all, `first_seconds` apart and then twice as long each time, up to
    `most_seconds`. The server's Retry-After wins where it is longer; up to a half of each wait
    is added by chance, so that many clients do not come back at once.
    """

    attempts: int = 4
    first_seconds: float = 0.1
    most_seconds: float = 5.0

    def wait(self, error: ModelError, failures: int, luck: float) -> float | None:
        """Seconds to wait after so many failures; None to give up. `luck` is from 0 to 1."""
        if not isinstance(error, UnavailableError) or failures >= self.attempts:
            return None
        if (asked := error.retry_after or 0.0) > self.most_seconds:
            return None
        own = min(self.first_seconds * 2.0 ** (failures - 1), self.most_seconds)
        return max(asked, own) * (1 + luck / 2)


class Call:
    """The clock of one call, over all of its attempts."""

    def __init__(self, seconds: float, retry: Retry, clock: Callable[[], float]) -> None:
        if seconds <= 0:
            raise ValueError("a call needs more than 0 seconds")
        self._seconds = seconds
        self._retry = retry
        self._clock = clock
        self._end = clock() + seconds
        self._failures = 0

    @property
    def left(self) -> float:
        """Seconds that are left; `DeadlineError` if there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise late()
        return left

    @property
    def timeout(self) -> int:
        """What the server is told, in microseconds.

        The same for each call's first attempt: a server knows a request again by its bytes.
        """
        seconds = self._seconds if self._failures == 0 else self.left
        return max(1, int(seconds * _MICROSECONDS))

    def pause(self, error: ModelError) -> float:
        """Seconds to wait before the next attempt; raises `error` if there is none."""
        self._failures += 1
        seconds = self._retry.wait(error, self._failures, random.random())
        if seconds is None or self._clock() + seconds >= self._end:
            raise error
        return seconds


def late() -> DeadlineError:
    """The error of a call that took too long."""
    return DeadlineError(
        "the answer was not there in time",
        code="deadline_exceeded",
        hint="Allow more time, or send fewer rows in each request.",
    )
