"""Admission to a model's queue: limits, the memory budget, and a forecast of the wait. Pure.

The forecast uses the costs of batches, the running batch, the queue and the offered load.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.protocol.priority import Priority

# Some of the requests in flight are answered within about this time.
_RETRY_SECONDS = 1.0
# An overloaded server admits the requests that fill the next batch, and this much more, because
# arrivals are uneven.
_ADMIT_SLACK = 1.25
# It never rejects a request that would wait for less than so many smallest batches; requests that
# are not joined need more room, because each of them lengthens the queue.
_ADMIT_JOINED = 3
_ADMIT_ALONE = 6
# A larger weight detects overload sooner, with a shorter queue.
_WEIGHT = 1 / 4
_LASTING_WEIGHT = 1 / 16
# The count of one batch is clipped here: one batch after a pause never looks like overload.
_MAX_UTILIZATION = 3.0
# Above this utilization overload is certain; below, with this lasting excess.
_PLAIN = 1.5
_EXCESS = 1 / 4
# Clients that wait for their answers, with requests of many sizes, are rejected from 4 down.
_MAX_DOUBT = 8.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_rows` of a batch, `max_queue_rows` waiting, and three times in seconds.

    `max_wait` is the longest time that a batch may be held back for clients that were just
    answered, where that pays; 0 never holds one back, inf as long as it pays.
    `max_queue` is the longest predicted wait that is accepted; None is no limit below overload, and
    in overload just enough to keep the model busy.
    """

    max_rows: int
    max_queue_rows: int
    max_wait: float = 0.0
    joinable: bool = True
    max_queue: float | None = None


class QueueFullError(MlctlError):
    """QUEUE_FULL with the seconds after which a retry is likely to be accepted.

    `rows` wait, and the limit is `limit`. `wait` is the predicted one, in seconds, where that is
    too much.
    """

    retry_after: float

    def __init__(
        self,
        rows: int,
        limit: int,
        retry_after: float,
        *,
        wait: float | None = None,
    ) -> None:
        reason = f"{rows} rows wait already, the limit is {limit}"
        if wait is not None:
            reason = f"the answer would have to wait for about {wait:.3g} s, which is too long"
        super().__init__(ErrorCode.QUEUE_FULL, reason)
        self.retry_after = retry_after


class CachedRejection(NamedTuple):
    """Cached rejection for requests of `rows` rows at this priority, whatever their deadline.

    Valid until the time `until`, or until the queue shrinks.
    """

    rows: int
    priority: Priority
    until: float
    error: QueueFullError


def deadline_exceeded() -> MlctlError:
    """Return the error of a request that missed its deadline."""
    return MlctlError(
        ErrorCode.DEADLINE_EXCEEDED, "the answer was not ready before the request's deadline"
    )


def too_many_rows(rows: int, limit: int) -> MlctlError:
    """Return the error of a request that has more rows than could ever wait."""
    return MlctlError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"the request has {rows} rows, the limit is {limit}"
    )


def too_many_bytes(limit: int) -> MlctlError:
    """Return the error of a request whose body is larger than `limit` bytes."""
    return MlctlError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"the body is larger than the limit of {limit} bytes"
    )


class OfferedLoad:
    """Measure arrivals while a batch runs, as running means over the time of four full batches.

    Only arrivals during a busy model count, and idle time counts as batches without arrivals. So
    closed-loop clients never look like overload, however many they are, nor does one burst after a
    pause. Closed-loop clients keep the model just busy with fluctuating demand, so a small excess
    is overload only if it lasts.
    """

    def __init__(self) -> None:
        self.utilization = 0.0
        self._lasting = 0.0  # the same over the time of sixteen batches
        self._units = 0

    @property
    def doubt(self) -> float:
        """Return the doubt about overload: 1 is certain, 8 is unlikely, inf is none.

        It falls with the third power of the lasting excess: twice the excess, an eighth.
        """
        if self.utilization <= 1.0:
            return inf
        if self.utilization >= _PLAIN:
            return 1.0
        excess = self._lasting - 1.0
        if excess <= 0:
            return _MAX_DOUBT
        return max(1.0, min(_MAX_DOUBT, (_EXCESS / excess) ** 3))

    def offered(self, units: int) -> None:
        """Record rows (requests, if they are not joined) that arrived while a batch ran."""
        self._units += units

    def idle(self, batches: float) -> None:
        """Record idle time as a number of full batches."""
        self._count(0.0, batches)

    def ended(self, possible: float, batches: float) -> None:
        """Record the end of a batch, in whose time full batches process `possible` units.

        It lasted as long as `batches` full batches and is weighted by that: arrivals during a short
        batch say little about the average.
        """
        self._count(min(_MAX_UTILIZATION, self._units / possible) if possible > 0 else 0.0, batches)
        self._units = 0

    def _count(self, share: float, batches: float) -> None:
        self.utilization += (1 - (1 - _WEIGHT) ** batches) * (share - self.utilization)
        self._lasting += (1 - (1 - _LASTING_WEIGHT) ** batches) * (share - self._lasting)


class Forecast:
    """Predicted waits of one model's queue."""

    def __init__(self, limits: Limits, costs: BatchCosts) -> None:
        self.running_rows = 0
        self._limits = limits
        self._costs = costs
        self._full_units = limits.max_rows if limits.joinable else 1
        self._load = OfferedLoad()
        self._started: float | None = None
        self._ended = 0.0
        # The time of the numbers below: requests of one loop tick arrive at the same time.
        self._computed = -inf
        self._running_seconds = 0.0
        self._longest = inf
        self._full = 0.0

    def offered(self, rows: int, now: float, *, queued: bool) -> None:
        """Record that a request of `rows` rows arrived, accepted or not; others are `queued`."""
        if self._started is not None:
            self._load.offered(rows if self._limits.joinable else 1)
        elif not queued and self._full_seconds > 0:
            # A request of the tick in which the batch ended may have arrived before its end.
            idle = max(0.0, now - self._ended)
            self._load.idle(self._possible(idle) / self._full_units)
            self._ended += idle

    def started(self, rows: int, now: float) -> None:
        """Record that a batch of `rows` rows starts."""
        self.running_rows = rows
        self._started = now
        self._computed = -inf

    def ended(self, seconds: float) -> None:
        """Record that the batch has run for `seconds`."""
        if self._started is not None:
            self._ended = self._started + seconds
        self._started = None
        self._computed = -inf
        units = self._possible(seconds)
        if units and self._limits.joinable:  # that many were done, whatever was predicted
            units = max(units, self.running_rows)
        self._load.ended(units, units / self._full_units)

    @property
    def idle_since(self) -> float:
        """The time at which the last batch ended."""
        return self._ended

    def running_seconds(self, now: float) -> float:
        """Return for how many seconds the running batch has run; 0 if none runs."""
        started = self._started  # read once: the watchdog calls this on another thread
        return 0.0 if started is None else now - started

    def wait(self, rows: int, requests: int, now: float) -> tuple[float, float]:
        """Return the predicted seconds in the queue of a request that arrives now, and the limit.

        `rows` in `requests` are ahead of it. The limit is `longest_wait`.
        """
        if now != self._computed:
            self._computed, self._running_seconds = now, self._seconds_left(now)
            self._longest, self._full = self.longest_wait(), self._full_seconds
        if self._limits.joinable:
            return self._running_seconds + rows // self._limits.max_rows * self._full, self._longest
        return self._running_seconds + self._seconds_of(rows, requests, 0), self._longest

    def retry_after(self, rows: int, requests: int, now: float) -> float:
        """Return the predicted seconds until a queue of `rows` in `requests` is drained."""
        return self._seconds_left(now) + self._seconds_of(
            rows, requests, -(-rows // self._limits.max_rows)
        )

    def longest_wait(self) -> float:
        """Return the longest predicted wait that is accepted, in seconds.

        Without `limits.max_queue`: below a utilization of 1 (offered load by the throughput of
        full batches) a queue drains by itself. Above it, the requests of the last 1 / utilization
        of each batch's time fill the next batch, and earlier ones would only wait longer. The less
        certain the overload is, the longer the wait that is accepted.
        """
        if self._limits.max_queue is not None:
            return self._limits.max_queue
        doubt = self._load.doubt
        if doubt == inf:
            return inf
        if self._limits.joinable:
            fills = _ADMIT_SLACK * self._full_seconds / self._load.utilization
            longest = max(fills, _ADMIT_JOINED * self._costs.seconds(1))
        else:
            longest = _ADMIT_ALONE * self._full_seconds
        return longest * doubt

    @property
    def _full_seconds(self) -> float:
        """The seconds of a full batch; of one like the last, if requests are not joined."""
        rows = self._limits.max_rows if self._limits.joinable else max(1, self.running_rows)
        return self._costs.seconds(rows)

    def _possible(self, seconds: float) -> float:
        """Return the rows that full batches do in `seconds`; requests, if they are not joined."""
        full = self._full_seconds
        return self._full_units * seconds / full if full > 0 else 0.0

    def _seconds_of(self, rows: int, requests: int, batches: int) -> float:
        if self._limits.joinable:
            return batches * self._full_seconds
        if not requests:
            return 0.0
        return requests * self._costs.seconds(-(-rows // requests))

    def _seconds_left(self, now: float) -> float:
        if self._started is None:
            return 0.0
        return max(0.0, self._started + self._costs.seconds(self.running_rows) - now)


class BusyError(QueueFullError):
    """QUEUE_FULL because of the memory budget or another limit; says when to retry."""

    def __init__(self, reason: str) -> None:
        MlctlError.__init__(self, ErrorCode.QUEUE_FULL, reason)
        self.retry_after = _RETRY_SECONDS


class Inflight:
    """The memory budget of one worker: at most `limit` bytes of request bodies in flight.

    A body is charged for the bytes that have arrived, and for what they inflate to, never for a
    declared length: a client that declares bytes and sends none takes no memory from others. The
    charge ends with the request's answer: until then the tensors take as much as the body did.
    Belongs to one event loop.
    """

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
