"""The memory budget of one worker: the bytes of all request bodies in flight.

A body is charged for the bytes that have arrived, and for what they inflate to, never for a
declared length: a client that declares bytes and sends none takes no memory from others. The
charge ends with the request's answer: until then the tensors take as much as the body did.
"""

from __future__ import annotations

from typing import Self

from bundle.errors import ErrorCode, MlctlError
from services.batching.admission import QueueFullError

# What is in flight is answered within about this time, or at least some of it.
_RETRY_SECONDS = 1.0


class BusyError(QueueFullError):
    """QUEUE_FULL, because of what is held and not of what waits; says when to try again."""

    def __init__(self, reason: str) -> None:
        MlctlError.__init__(self, ErrorCode.QUEUE_FULL, reason)
        self.retry_after = _RETRY_SECONDS


class Inflight:
    """The bytes of one worker's bodies: at most `limit` of them. Belongs to one event loop."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """Hold `size` bytes more, if there is room; whoever asks subtracts them from `used`."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True


class Hold:
    """One request's share of what is in flight; `release` it when the request is over."""

    __slots__ = ("_inflight", "size")

    def __init__(self, inflight: Inflight) -> None:
        self._inflight = inflight
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def grow(self, size: int) -> None:
        """Hold `size` bytes, if it is not so many already; BusyError if they are too many."""
        more = size - self.size
        if more <= 0:
            return
        inflight = self._inflight
        if inflight.used + more > inflight.limit:
            raise BusyError(
                f"the requests in flight have {inflight.used} of {inflight.limit} bytes already"
            )
        inflight.used += more
        self.size = size

    def release(self) -> None:
        """Hold nothing any more; more than once is once."""
        self._inflight.used -= self.size
        self.size = 0
