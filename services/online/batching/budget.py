"""The memory budget of one worker: the bytes of all request bodies in flight.

A body is charged for the bytes that have arrived, and for what they inflate to, never for a
declared length: a client that declares bytes and sends none takes no memory from others. The
charge ends with the request's answer: until then the tensors take as much as the body did.
"""

from __future__ import annotations

from typing import Self

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.admission import QueueFullError

# Some of the requests in flight are answered within about this time.
_RETRY_SECONDS = 1.0


class BusyError(QueueFullError):
    """QUEUE_FULL because of the memory budget or another limit; says when to retry."""

    def __init__(self, reason: str) -> None:
        MlctlError.__init__(self, ErrorCode.QUEUE_FULL, reason)
        self.retry_after = _RETRY_SECONDS


class Inflight:
    """The memory budget: at most `limit` bytes are charged. Belongs to one event loop."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Hold:
    """One request's share of the memory budget; `release` it when the request is over."""

    size = 0

    def __init__(self, inflight: Inflight) -> None:
        self.inflight = inflight

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def grow(self, size: int) -> None:
        """Charge up to `size` bytes in total; raise BusyError if they do not fit."""
        more = size - self.size
        if more <= 0:
            return
        inflight = self.inflight
        if inflight.used + more > inflight.limit:
            raise BusyError(
                f"the requests in flight have {inflight.used} of {inflight.limit} bytes already"
            )
        inflight.used += more
        self.size = size

    def release(self) -> None:
        """Release the whole share; a second call does nothing."""
        self.inflight.used -= self.size
        self.size = 0
