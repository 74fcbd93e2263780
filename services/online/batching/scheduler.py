"""Scheduling policy of one model's queue: which requests form the next batch, and when it starts.

Pure: no I/O and no clock; callers pass the time in seconds.

Invariants
- An accepted request leaves the queue exactly once: scheduled, cancelled or expired.
- Queued rows never exceed `limits.max_queue_rows`; at most one batch runs at a time.
- A batch mixes only requests with equal keys (shapes), and only if rows are independent.
- The oldest request of a priority leads the next batch of it; no request starves. Later ones are
  served in arrival order, except that a small one may fill a batch that a larger one does not fit,
  and that small requests and large ones lead batches alternately.
- An idle model accepts any request, so a wrong estimate corrects itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import chain
from math import inf
from typing import Generic, TypeVar

from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.online.batching.admission import (
    CachedRejection,
    Forecast,
    Limits,
    QueueFullError,
    deadline_exceeded,
    too_many_rows,
)
from mlctl.services.online.batching.linger import LingerHeuristic
from mlctl.services.protocol.priority import Priority

__all__ = [
    "LARGE_ROWS",
    "BatchScheduler",
    "Limits",
    "Priority",
    "QueueFullError",
    "Ticket",
    "deadline_exceeded",
]

# Above this many rows a request is large: a list to rank, and not what one user typed.
LARGE_ROWS = 32
# Up to this many consecutive batches start with a high-priority request while a normal one waits.
MAX_CONSECUTIVE_HIGH = 4


class Ticket:
    """One request of a scheduler: waiting, running, or closed.

    The scheduler numbers tickets in the order in which it accepts them. `open` until the request
    is answered, cancelled or expired; `prompt` if it arrived at an idle server and must not wait;
    `large` if it has many rows, or is a part of such a request. `last_start` is when it expires if
    it still waits.
    """

    number = -1
    open = False
    prompt = False
    large = False
    last_start = inf

    def __init__(
        self,
        rows: int,
        key: Hashable,
        arrived: float,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        self.rows = rows
        self.key = key
        self.arrived = arrived
        self.deadline = deadline
        self.priority = priority


TicketT = TypeVar("TicketT", bound=Ticket)


class PriorityQueue(Generic[TicketT]):
    """Waiting tickets in two queues, one per priority, each in arrival order; neither starves."""

    def __init__(self) -> None:
        self.count = 0
        self.rows = 0
        self.high_rows = 0
        self._high: OrderedDict[TicketT, None] = OrderedDict()
        self._normal: OrderedDict[TicketT, None] = OrderedDict()
        self._passed_over = 0

    def add(self, ticket: TicketT) -> None:
        """Append `ticket` to the queue of its priority."""
        if ticket.priority is Priority.HIGH:
            self._high[ticket] = None
            self.high_rows += ticket.rows
        else:
            self._normal[ticket] = None
        self.rows += ticket.rows
        self.count += 1

    def remove(self, ticket: TicketT) -> bool:
        """Remove a ticket; return whether it waited."""
        if ticket in self._normal:
            del self._normal[ticket]
        elif ticket in self._high:
            del self._high[ticket]
            self.high_rows -= ticket.rows
        else:
            return False
        self.rows -= ticket.rows
        self.count -= 1
        return True

    def ahead_of(self, priority: Priority) -> tuple[int, int]:
        """Return the rows and requests that a new ticket of `priority` would wait behind."""
        if priority is Priority.HIGH:
            return self.high_rows, len(self._high)
        return self.rows, self.count

    def oldest(self) -> TicketT:
        """Return the ticket that has waited longest; the queue must not be empty."""
        heads = [next(iter(queue)) for queue in (self._high, self._normal) if queue]
        return min(heads, key=lambda ticket: ticket.arrived)

    def in_turn(self) -> Iterator[TicketT]:
        """Return all tickets in the order in which the next batch takes them."""
        if not self._high:
            return iter(self._normal)
        first, second = self._high, self._normal
        if self._passed_over >= MAX_CONSECUTIVE_HIGH:
            first, second = second, first
        return chain(first, second)

    def release(self, batch: list[TicketT]) -> None:
        """Remove a batch; the priority of its first ticket decides when a normal one goes first."""
        led_by_high = batch[0].priority is Priority.HIGH
        self._passed_over = self._passed_over + 1 if led_by_high and self._normal else 0
        if len(batch) == self.count:
            self._high.clear()
            self._normal.clear()
            self.count = self.rows = self.high_rows = 0
            return
        for ticket in batch:
            self.remove(ticket)


class BatchScheduler(Generic[TicketT]):
    """The queue of one model and its one running batch."""

    def __init__(self, limits: Limits, costs: BatchCosts | None = None) -> None:
        self.limits = limits
        self.costs = costs or BatchCosts()
        self._queue: PriorityQueue[TicketT] = PriorityQueue()
        self._led_by_large = False
        self._forecast = Forecast(limits, self.costs)
        self._linger: LingerHeuristic | None = None
        if limits.max_wait > 0 and limits.joinable:
            self._linger = LingerHeuristic(self.costs, limits.max_rows, limits.max_wait)
        self._running: list[TicketT] = []
        self._busy = False
        # No open request expires before this time; that of a request that has left may remain.
        self._next_expiry = inf
        self._next = 0
        self.rejection: CachedRejection | None = None

    @property
    def waiting_rows(self) -> int:
        """The queued rows of both priorities."""
        return self._queue.rows

    @property
    def busy(self) -> bool:
        """Whether a batch is running."""
        return self._busy

    @property
    def full(self) -> bool:
        """Whether the queued rows fill a batch."""
        return self._queue.rows >= self.limits.max_rows

    @property
    def idle(self) -> bool:
        """Whether no batch runs and the queue is empty."""
        return not self._busy and not self._queue.count

    def open_tickets(self) -> list[TicketT]:
        """Return the requests that wait, and those that run and are not answered."""
        return [*self._queue.in_turn(), *[ticket for ticket in self._running if ticket.open]]

    def offer(self, ticket: TicketT, *, part: bool = False) -> None:
        """Accept a request, or raise.

        A `part` is one of a request that `check_room` accepted. Neither it nor a large request
        counts as offered load or is rejected for its predicted wait, except by its deadline: many
        rows arrive at once, and a few clients that wait for their answers would look like overload.
        QUEUE_FULL with a computed retry time, by the rows or by the predicted wait;
        PAYLOAD_TOO_LARGE for more rows than could ever wait; DEADLINE_EXCEEDED if the
        deadline has passed already.
        """
        rows, now, deadline = ticket.rows, ticket.arrived, ticket.deadline
        limits, queue = self.limits, self._queue
        if deadline <= now:
            raise deadline_exceeded()
        ticket.large = part or (rows > LARGE_ROWS and limits.joinable)
        if not ticket.large:
            self._forecast.offered(rows, now, queued=queue.count > 0)
        if not part and queue.rows + rows > limits.max_queue_rows // 2:
            self.check_room(rows, ticket.priority, now)
        seconds = self.costs.seconds(rows)
        if self._busy or queue.rows >= limits.max_rows:
            self._admit(ticket, deadline - now - seconds)
        else:
            ticket.prompt = not queue.count
            if self._linger is not None:
                ticket.prompt = ticket.prompt and not self._linger.may_linger(rows, now)
                self._linger.arrived(rows, now)
        ticket.number, ticket.open = self._next, True
        self._next += 1
        queue.add(ticket)
        # A request that can no longer be answered in time expires then, and not at its deadline.
        ticket.last_start = deadline if ticket.prompt else deadline - seconds
        if ticket.last_start < self._next_expiry:  # noqa: PLR1730 - min is a call for each request
            self._next_expiry = ticket.last_start

    def check_room(self, rows: int, priority: Priority, now: float) -> None:
        """Raise QUEUE_FULL unless the queue has room for a request of `rows` rows.

        PAYLOAD_TOO_LARGE for more rows than could ever wait. Large requests may fill half of the
        queue: the rest is reserved for small ones (trunk reservation, as in telephone networks).
        An empty queue has room for any request.
        """
        waiting, limit = self._queue.rows, self.limits.max_queue_rows
        if rows > limit:
            raise too_many_rows(rows, limit)
        if rows > LARGE_ROWS:
            limit //= 2
        if waiting and waiting + rows > limit:
            full = QueueFullError(waiting, limit, self._retry_after(now))
            self.rejection = CachedRejection(rows, priority, inf, full)
            raise full

    def quick_reject(
        self, rows: int | None, priority: Priority, now: float
    ) -> QueueFullError | None:
        """Return the error `offer` is certain to raise, without scanning the queue, else None.

        Valid for requests with the same rows and priority until the queue shrinks. With None for
        `rows`, for any number up to LARGE_ROWS. Counted as a rejection.
        """
        cached = self.rejection
        if cached is None or now >= cached.until or priority != cached.priority:
            return None
        if rows is None:
            # A predicted wait is too long for any rows, a full queue for those rejected and more.
            if cached.until == inf and cached.rows > 1:
                return None
        elif rows != cached.rows:
            return None
        # Where nothing runs, requests wait: the queue is full.
        self._forecast.offered(rows or 1, now, queued=True)
        # Without the traceback, which would keep the frames that it was raised through.
        return cached.error.with_traceback(None)

    def cancel(self, ticket: TicketT) -> bool:
        """Drop a request whose client disconnected; return whether it was queued, not running."""
        ticket.open = False
        self.rejection = None
        return self._queue.remove(ticket)

    def expire(self, now: float) -> list[TicketT]:
        """Remove and return requests that can no longer meet their deadline.

        A running request is returned once its deadline has passed, so that the client gets a 504;
        its batch keeps the slot until it finishes.
        """
        if now < self._next_expiry:
            return []
        queue, running = self._queue, [ticket for ticket in self._running if ticket.open]
        overdue = [ticket for ticket in queue.in_turn() if ticket.last_start <= now]
        for ticket in overdue:
            queue.remove(ticket)
        overdue += [ticket for ticket in running if ticket.deadline <= now]
        for ticket in overdue:
            ticket.open = False
            self.rejection = None
        moments = [ticket.last_start for ticket in queue.in_turn()]
        moments += [ticket.deadline for ticket in running if ticket.open]
        self._next_expiry = min(moments, default=inf)
        return overdue

    def release(self, now: float) -> list[TicketT]:
        """Return the requests of the batch to start now, in order; empty to wait."""
        if self._busy or not self._queue.count:
            return []
        batch, full = self._compose(now)
        if not full and self._release_time(batch, now) > now:
            return []
        self._queue.release(batch)
        self.rejection = None
        self._led_by_large = batch[0].large
        if self._linger is not None:
            self._linger.released(now)
        self._running = batch
        self._forecast.started(sum([ticket.rows for ticket in batch]), now)
        self._busy = True
        return batch

    def finished(self, seconds: float, *, clean: bool = True) -> None:
        """Record that the running batch ended after `seconds`; the slot is free.

        If not `clean`, the batch ran in parts because a request failed, and its time is not used
        for estimates.
        """
        if clean:
            self.costs.observe(self._forecast.running_rows, seconds)
        self._forecast.ended(seconds)
        if self._linger is not None:
            self._linger.ended(self._forecast.running_rows, self._forecast.idle_since)
        self.rejection = None
        self._running = []
        self._busy = False

    def next_event(self, now: float) -> float | None:
        """Return when to call `expire` and `release` again if nothing else happens, or None."""
        if not (self._busy or self._queue.count):
            self._next_expiry = inf
            return None
        moment = self._next_expiry
        if self._queue.count and not self._busy:
            batch, full = self._compose(now)
            moment = min(moment, now if full else self._release_time(batch, now))
        return None if moment == inf else moment

    def running_seconds(self, now: float) -> float:
        """Return for how many seconds the running batch has run; 0 if none runs."""
        return self._forecast.running_seconds(now)

    @property
    def running_rows(self) -> int:
        """The rows of the running batch, or of the last one."""
        return self._forecast.running_rows

    def _admit(self, ticket: TicketT, in_time: float) -> None:
        """Raise QUEUE_FULL for a request that would wait too long, or longer than `in_time`."""
        now = ticket.arrived
        wait, longest = self._forecast.wait(*self._queue.ahead_of(ticket.priority), now)
        if ticket.large:
            longest = inf
        if wait > longest or wait > in_time:
            retry_after = self._retry_after(now)
            error = QueueFullError(
                self._queue.rows, self.limits.max_queue_rows, retry_after, wait=wait
            )
            if wait > longest:  # the wait shrinks with time, until the queue changes
                self.rejection = CachedRejection(
                    ticket.rows, ticket.priority, now + wait - longest, error
                )
            raise error

    def _retry_after(self, now: float) -> float:
        """Return the predicted seconds until the current queue is drained."""
        return self._forecast.retry_after(self._queue.rows, self._queue.count, now)

    def _release_time(self, batch: list[TicketT], now: float) -> float:
        """Return when to release a batch that is not full: now, unless it pays to linger."""
        if self._linger is None or self._queue.oldest().prompt:
            return now
        rows = sum([ticket.rows for ticket in batch])
        linger = self._linger.until(rows, now)
        if linger <= now:
            return now
        # Twice what it takes: a batch that leaves at the last moment is late.
        in_time = min(ticket.deadline for ticket in batch) - 2 * self.costs.seconds(rows)
        return min(linger, in_time)

    def _compose(self, now: float) -> tuple[list[TicketT], bool]:
        """Return the next request and those that join it, and whether the batch is full.

        A request is not joined if the larger batch would end after a deadline in it. One that does
        not fit is passed over for later ones that do (backfilling, as in EASY for job queues): it
        leads the next batch at the latest when it is the oldest. After a batch that a large request
        led, small ones go first.
        """
        waiting = self._queue.in_turn()
        if self._led_by_large:
            waiting = iter(sorted(waiting, key=lambda ticket: ticket.large))
        batch = [next(waiting)]
        rows, tightest = batch[0].rows, batch[0].deadline
        if not self.limits.joinable:
            return batch, True
        size = self.limits.max_rows
        passed_over = False
        no_deadline_until = now + self.costs.seconds(size)
        for ticket in waiting:
            if ticket.key != batch[0].key:
                continue
            if rows + ticket.rows > size:
                passed_over = True
                continue
            if ticket.deadline < tightest:  # noqa: PLR1730 - min is a call for each request
                tightest = ticket.deadline
            if (
                tightest < no_deadline_until
                and now + self.costs.seconds(rows + ticket.rows) > tightest
            ):
                return batch, True
            batch.append(ticket)
            rows += ticket.rows
            if rows >= size:
                break
        return batch, passed_over or rows >= size
