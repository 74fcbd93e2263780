"""What a queue may hold, and what it is expected to make a newcomer wait. Pure.

The forecast knows the costs of batches, what runs, who waits and how much is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.batch_size import BatchSize
from services.online.batching.offered_load import OfferedLoad
from services.online.batching.priority_queue import PriorityQueue
from services.protocol.priority import Priority
from services.runtime.batch_costs import BatchCosts

# An overloaded server admits what comes in the time in which the next batch fills, and
# this much more, as arrivals are not even.
_ADMIT_SLACK = 1.25
# It never refuses what would wait for less than so many smallest batches; requests that are
# not joined need more room, as there every one of them makes the queue longer.
_ADMIT_JOINED = 3
_ADMIT_ALONE = 6


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_rows` of a batch, `max_queue_rows` waiting, and three times in seconds.

    `max_wait` is how long a request may be held back to be joined with others; with `gather`
    instead as long as it pays to wait for those who were just answered.
    `max_queue` is the longest predicted wait that is accepted; None is no limit until
    more is offered than the model can do, and then as little as keeps it busy.
    `max_long` is how many requests that run in steps are open at once.
    `sizes` are those that a full batch may have, rising to `max_rows`; none is that one only,
    as it is where requests are not joined.
    """

    max_rows: int
    max_queue_rows: int
    max_wait: float = 0.0
    joinable: bool = True
    max_queue: float | None = None
    max_long: int = 64
    gather: bool = False
    sizes: tuple[int, ...] = ()


class QueueFullError(MlctlError):
    """QUEUE_FULL with the seconds after which a retry is likely to be accepted.

    `found` says how many there are of `what`, which is at its limit. `wait` is the
    predicted one, in seconds, where that is too much.
    """

    def __init__(
        self,
        found: int,
        limit: int,
        retry_after: float,
        *,
        what: str = "rows wait",
        wait: float | None = None,
    ) -> None:
        reason = f"{found} {what} already, the limit is {limit}"
        if wait is not None:
            reason = f"the answer would have to wait for about {wait:.3g} s, which is too long"
        super().__init__(ErrorCode.QUEUE_FULL, reason)
        self.retry_after = retry_after


class Shut(NamedTuple):
    """Whoever asks for so many `rows` in this lane is refused by `error`, whatever his deadline.

    It holds up to the moment `until`, and no longer than nobody leaves the queue.
    """

    rows: int
    priority: Priority
    until: float
    error: QueueFullError


def deadline_exceeded() -> MlctlError:
    """The error of a request whose time is over."""
    return MlctlError(
        ErrorCode.DEADLINE_EXCEEDED, "the answer was not ready before the request's deadline"
    )


class Forecast:
    """Predicted waits of one model's queue; told what is offered, started and ended.

    `between` is the seconds that a step of long work takes before each batch; 0 if none waits.
    """

    def __init__(
        self, limits: Limits, costs: BatchCosts, lanes: PriorityQueue, size: BatchSize
    ) -> None:
        self.running_rows = 0
        self.between = 0.0
        self._limits = limits
        self._costs = costs
        self._lanes = lanes
        self._batch = size
        self._sized = size.best
        self._units = 0.0
        self._most_units = size.largest if limits.joinable else 1
        self._load = OfferedLoad(limits.max_wait)
        self._started: float | None = None
        self._ended = 0.0

    def offered(self, rows: int, now: float, *, long: bool = False) -> None:
        """A request of `rows` rows came, whether it will be accepted or not.

        Those of `long` work are not counted, as its steps are not: there is a limit of its own.
        """
        if self._limits.max_wait > 0:  # else nobody asks for the gaps
            self._load.arrived(now)
        if self._started is not None and not long:
            self._load.offered(rows if self._limits.joinable else 1)
        elif self._started is None and not self._lanes.count and self._full_seconds > 0:
            self._load.idle(self._possible(now - self._ended) / self._most_units)
            self._ended = now

    def started(self, rows: int, now: float) -> None:
        """A batch of `rows` rows runs."""
        self.running_rows = rows
        self._started = now

    def ended(self, seconds: float, *, step: bool = False) -> None:
        """It has run for `seconds`, as a batch or as a `step` of long work.

        What a step took is no measure of what the model can do for others in that time.
        """
        if self._started is not None:
            self._ended = self._started + seconds
        self._started = None
        if step:
            return
        if self._batch.best != self._sized:
            # Who were answered in a batch of the size before come in one of this: no measure.
            self._sized, self._units = self._batch.best, 0.0
            self._load.skip()
            return
        units = self._possible(seconds)
        if units and self._limits.joinable:  # it was done, whatever was thought possible
            units = max(units, self.running_rows)
        self._units += units
        if self._batch.next != self._batch.best and self._units < self._most_units:
            # Who come during a trial are as many as would have come during the next batch:
            # the two are counted as one. But many trials in a row must not hide an overload.
            return
        self._load.ended(self._units, self._units / self._most_units)
        self._units = 0.0

    @property
    def idle_since(self) -> float:
        """When the last batch ended."""
        return self._ended

    def running_seconds(self, now: float) -> float:
        """For how long the running batch has been running; 0 if none does."""
        started = self._started  # read once: a watchdog asks from another thread
        return 0.0 if started is None else now - started

    def wait(self, priority: Priority, now: float) -> float:
        """Seconds until a request that comes now is in a batch: what runs, and full batches."""
        rows, requests = self._lanes.ahead_of(priority)
        return self._seconds_left(now) + self._seconds_of(rows, requests, rows // self._batch.best)

    def retry_after(self, now: float) -> float:
        """Seconds until the queue as it is now has drained, as far as the costs are known."""
        rows, requests = self._lanes.ahead_of(Priority.NORMAL)
        return self._seconds_left(now) + self._seconds_of(
            rows, requests, -(-rows // self._batch.best)
        )

    def longest_wait(self) -> float:
        """The longest predicted wait that is accepted, in seconds.

        Unless it was told: a utilization (what is offered by what full batches can do)
        below 1 drains by itself. Above, what comes in the last 1 / utilization of each
        batch's time fills the next one, and any earlier arrival would but wait longer;
        the more it is in doubt, the longer is waited.
        """
        if self._limits.max_queue is not None:
            return self._limits.max_queue
        doubt = self._load.doubt
        if doubt == inf:
            return inf
        if self._limits.joinable:
            fills = _ADMIT_SLACK * self._full_seconds / self._load.utilization
            least = max(fills, _ADMIT_JOINED * self._costs.seconds(1))
        else:
            least = _ADMIT_ALONE * self._full_seconds
        # What goes up and down does so over the time of the largest batches, as it is counted.
        return least * (1 + (doubt - 1) * self._batch.largest / self._batch.best)

    def company_until(self, rows: int, requests: int) -> float | None:
        """Until when one more request is worth waiting for; None if it is not.

        With n requests of r rows each on average and c(rows) the cost of a batch, one
        request more makes n + 1 of them wait for the gap until it comes and for the
        longer batch; it saves the newcomer a batch of its own, c(r). So waiting pays while
        the gap is below c(r) / (n + 1) - (c(nr + r) - c(nr)).
        """
        each = -(-rows // requests)
        longer = self._costs.seconds(rows + each) - self._costs.seconds(rows)
        patience = self._costs.seconds(each) / (requests + 1) - longer
        return None if self._load.gap > patience else self._load.last_arrival + patience

    @property
    def _full_seconds(self) -> float:
        """Of a full batch; of one like the last, if requests are not joined."""
        rows = self._batch.best if self._limits.joinable else max(1, self.running_rows)
        return self._costs.seconds(rows)

    def _possible(self, seconds: float) -> float:
        """The rows that full batches do in that time; requests, if they are not joined."""
        full = self._full_seconds
        units = self._batch.best if self._limits.joinable else 1
        return units * seconds / full if full > 0 else 0.0

    def _seconds_of(self, rows: int, requests: int, batches: int) -> float:
        if self._limits.joinable:
            return batches * (self._full_seconds + self.between)
        if not requests:
            return 0.0
        return requests * (self._costs.seconds(-(-rows // requests)) + self.between)

    def _seconds_left(self, now: float) -> float:
        if self._started is None:
            return 0.0
        return max(0.0, self._started + self._costs.seconds(self.running_rows) - now)
