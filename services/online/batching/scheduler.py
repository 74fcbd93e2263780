"""The batching policy: which requests run together, and when. Pure; time is passed in.

Invariants: every accepted ticket leaves exactly once (released, cancelled or expired);
waiting rows never exceed the limit; at most one batch runs; tickets are joined only if
the model's rows are independent and their keys are equal; within a key and a lane first
come is first served, and the head of each lane is soon in a batch, so nobody starves.
Long work runs in steps: after each of them comes a batch if any waits, and the reverse.
An idle server takes any request at once, so an estimate that is wrong corrects itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from math import inf

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.admission import (
    Forecast,
    Limits,
    QueueFullError,
    Shut,
    deadline_exceeded,
)
from services.online.batching.batch_size import BatchSize
from services.online.batching.linger import LingerHeuristic
from services.online.batching.priority_queue import PriorityQueue, Ticket
from services.online.batching.time_slices import TimeSlicedQueue
from services.protocol.priority import Priority
from services.runtime.batch_costs import BatchCosts

__all__ = ["BatchScheduler", "Limits", "Priority", "QueueFullError", "Ticket", "deadline_exceeded"]

_SPARE_DEADLINES = 256


class BatchScheduler:
    """The queue of one model and its one running batch."""

    def __init__(self, limits: Limits, costs: BatchCosts | None = None) -> None:
        self.limits = limits
        self.costs = costs or BatchCosts()
        self._lanes = PriorityQueue()
        self._shifts = TimeSlicedQueue()
        self._turn_of_long = False
        self._step_seconds = 0.0
        sizes = limits.sizes if limits.joinable else ()
        self._size = BatchSize(self.costs, sizes or (limits.max_rows,))
        self._forecast = Forecast(limits, self.costs, self._lanes, self._size)
        self._gathering: LingerHeuristic | None = None
        if limits.gather and limits.joinable:
            self._gathering = LingerHeuristic(self.costs, self._size)
        self._running: dict[int, Ticket] = {}
        self._busy = False
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0
        self._shut: Shut | None = None

    @property
    def waiting_rows(self) -> int:
        """Rows that wait in both lanes, and those of long work that does not run just now."""
        return self._lanes.rows + self._shifts.rows

    @property
    def busy(self) -> bool:
        """Whether a batch is running."""
        return self._busy

    @property
    def full(self) -> bool:
        """Whether as many rows wait as a batch has."""
        return self._lanes.rows >= self._size.next

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._busy and not self._lanes.count and not self._shifts.waiting

    def offer(
        self,
        rows: int,
        key: Hashable,
        now: float,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> Ticket:
        """Accept a request of `rows` rows, or raise.

        QUEUE_FULL with a computed retry time, by the rows or by the predicted wait;
        PAYLOAD_TOO_LARGE for more rows than could ever wait; DEADLINE_EXCEEDED if the
        deadline has passed already.
        """
        limit = self.limits.max_queue_rows
        if rows > limit:
            raise _too_many_rows(rows, limit)
        if deadline <= now:
            raise deadline_exceeded()
        self._forecast.offered(rows, now)
        if self._lanes.rows + rows > limit:
            full = QueueFullError(self._lanes.rows, limit, self._forecast.retry_after(now))
            self._shut = Shut(rows, priority, inf, full)
            raise full
        prompt = self.idle
        if self._busy or self._lanes.rows >= self._size.next:
            self._admit(rows, now, deadline, priority)
        elif self._gathering is not None:
            prompt = prompt and not self._gathering.company(rows, now)
            self._gathering.arrived(rows, now)
        ticket = Ticket(self._next, rows, key, now, deadline, prompt, priority)
        self._next += 1
        self._lanes.add(ticket)
        # Who cannot be answered any more leaves then, and not only at the deadline.
        last_start = deadline if prompt else deadline - self.costs.seconds(rows)
        heapq.heappush(self._deadlines, (last_start, ticket.number))
        return ticket

    def refusal(self, rows: int, priority: Priority, now: float) -> QueueFullError | None:
        """What `offer` would certainly raise, without a look at the queue, and counted; or None.

        Until the queue is shorter all who are alike are told the same.
        """
        shut = self._shut
        if shut is None or now >= shut.until or rows != shut.rows or priority != shut.priority:
            return None
        self._forecast.offered(rows, now)
        # What it was raised through is of no interest, and would be kept with it.
        return shut.error.with_traceback(None)

    def offer_long(
        self, rows: int, now: float, deadline: float, priority: Priority = Priority.NORMAL
    ) -> Ticket:
        """Accept work of `rows` rows that runs in steps, or raise.

        QUEUE_FULL if as much of it is open as may be, by its number or its rows;
        PAYLOAD_TOO_LARGE and DEADLINE_EXCEEDED as `offer`.
        """
        limit = self.limits.max_queue_rows
        if rows > limit:
            raise _too_many_rows(rows, limit)
        if deadline <= now:
            raise deadline_exceeded()
        self._forecast.offered(rows, now, long=True)
        open_long = len(self._shifts) + any(ticket.long for ticket in self._running.values())
        retry_after = self._forecast.retry_after(now)
        if open_long >= self.limits.max_long:
            what = "long requests are open"
            raise QueueFullError(open_long, self.limits.max_long, retry_after, what=what)
        if self._shifts.rows and self._shifts.rows + rows > limit:
            raise QueueFullError(self._shifts.rows, limit, retry_after)
        ticket = Ticket(self._next, rows, None, now, deadline, self.idle, priority, long=True)
        self._next += 1
        self._shifts.add(ticket)
        heapq.heappush(self._deadlines, (deadline, ticket.number))
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Forget a request whose caller left; whether it was not running."""
        self._running.pop(ticket.number, None)
        self._shut = None
        waiting = self._shifts if ticket.long else self._lanes
        return waiting.remove(ticket.number) is not None

    def expire(self, now: float) -> list[Ticket]:
        """Remove and return the requests that cannot be answered by their deadline any more.

        A running one is returned too, once, when the deadline has passed, so that its
        caller can be told; its batch keeps the slot until it has finished.
        """
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now:
            number = heapq.heappop(self._deadlines)[1]
            later = self._running.get(number) or self._shifts.get(number)
            if later is not None and later.deadline > now:
                heapq.heappush(self._deadlines, (later.deadline, number))
                continue
            ticket = self._running.pop(number, None) or self._lanes.remove(number)
            ticket = ticket or self._shifts.remove(number)
            if ticket is not None:
                self._shut = None
                overdue.append(ticket)
        return overdue

    def release(self, now: float) -> list[Ticket]:
        """The requests to run together now, in turn; empty if it is better to wait.

        Long work comes alone, and for one step.
        """
        if self._busy:
            return []
        batch = [] if self._turn_of_long and self._shifts.waiting else self._next_batch(now)
        if batch:
            self._lanes.release(batch)
        elif self._shifts.waiting:
            batch = [self._shifts.pop()]
        else:
            return []
        self._shut = None
        if self._gathering is not None:
            self._gathering.released(now)
        long = batch[0].long
        self._turn_of_long = not long
        self._forecast.between = self._step_seconds if long or self._shifts.waiting else 0.0
        self._running = {ticket.number: ticket for ticket in batch}
        rows = sum([ticket.rows for ticket in batch])
        self._forecast.started(min(rows, self.limits.max_rows) if long else rows, now)
        self._busy = True
        return batch

    def finished(self, seconds: float, *, clean: bool = True) -> None:
        """The running batch has ended after `seconds`; the slot is free.

        Unless `clean` it was run in parts because one failed, which says nothing about
        what such a batch takes.
        """
        if clean:
            self.costs.observe(self._forecast.running_rows, seconds)
        self._forecast.ended(seconds)
        if self._gathering is not None:
            self._gathering.ended(self._forecast.running_rows, self._forecast.idle_since)
        self._size.ended(self._forecast.running_rows, seconds, self._lanes.rows)
        self._free_slot()

    def stepped(
        self, seconds: float, deadline: float | None = None, *, parked: bool = False
    ) -> None:
        """A step of the running long work has ended after `seconds`; the slot is free.

        Without a `deadline` for what is left that was the last step. It waits for its
        next turn, or is `parked` until `resume`; who left or was told meanwhile does neither.
        """
        for ticket in self._running.values():
            if deadline is not None:
                self._shifts.add(ticket._replace(deadline=deadline), parked=parked)
        self._step_seconds = seconds
        self._forecast.ended(seconds, step=True)
        self._free_slot()

    def resume(self, ticket: Ticket, deadline: float) -> bool:
        """Let parked work have its turns again, with a new deadline; whether it was parked."""
        return self._shifts.resume(ticket.number, deadline)

    def next_event(self, now: float) -> float | None:
        """When to look again if nothing else happens: a deadline, or the end of a wait."""
        if not (self._busy or self._lanes.count or len(self._shifts)):
            self._deadlines.clear()  # one by one would cost each request as much as all of it
        while self._deadlines and not self._is_open(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        moments = [self._deadlines[0][0]] if self._deadlines else []
        if self._lanes.count and not self._busy:
            batch, full = self._compose(now)
            moments.append(now if full else self._hold_until(batch, now))
        return min(moments, default=None)

    def running_seconds(self, now: float) -> float:
        """For how long the running batch has been running; 0 if none does."""
        return self._forecast.running_seconds(now)

    @property
    def running_rows(self) -> int:
        """The rows of the running batch, or of the last one."""
        return self._forecast.running_rows

    def _admit(self, rows: int, now: float, deadline: float, priority: Priority) -> None:
        wait, longest = self._forecast.wait(priority, now), self._forecast.longest_wait()
        in_time = deadline - now - self.costs.seconds(rows)
        if wait > min(longest, in_time):
            retry_after = self._forecast.retry_after(now)
            error = QueueFullError(
                self._lanes.rows, self.limits.max_queue_rows, retry_after, wait=wait
            )
            if wait > longest:  # which falls with the time, as long as nothing else happens
                self._shut = Shut(rows, priority, now + wait - longest, error)
            raise error

    def _free_slot(self) -> None:
        self._shut = None
        self._running = {}
        self._busy = False
        self._compact()

    def _next_batch(self, now: float) -> list[Ticket]:
        """The short requests to run together now; none if it is better to wait."""
        if not self._lanes.count:
            return []
        batch, full = self._compose(now)
        return [] if not full and self._hold_until(batch, now) > now else batch

    def _hold_until(self, batch: list[Ticket], now: float) -> float:
        """When a batch that is not full is released: at once unless company is worth a wait."""
        oldest = self._lanes.oldest()
        if oldest.prompt:
            return oldest.arrived
        company = self._company_until(batch, oldest, now)
        if company <= now:
            return oldest.arrived
        # Twice what it takes: a batch that leaves at the last moment is late.
        rows = sum([ticket.rows for ticket in batch])
        in_time = min(ticket.deadline for ticket in batch) - 2 * self.costs.seconds(rows)
        return min(company, in_time)

    def _company_until(self, batch: list[Ticket], oldest: Ticket, now: float) -> float:
        """Until when those who came first may be held back for others, as far as it pays."""
        if self._gathering is None and self.limits.max_wait <= 0:
            return now
        rows = sum([ticket.rows for ticket in batch])
        if self._gathering is not None:
            return self._gathering.until(rows, now)
        company = self._forecast.company_until(rows, len(batch))
        return now if company is None else min(oldest.arrived + self.limits.max_wait, company)

    def _compose(self, now: float) -> tuple[list[Ticket], bool]:
        """The next in turn and those that may join it, and whether no more would fit.

        A ticket is not joined where the larger batch would end after somebody's deadline.
        """
        waiting = self._lanes.in_turn()
        batch = [next(waiting)]
        rows, tightest = batch[0].rows, batch[0].deadline
        if not self.limits.joinable:
            return batch, True
        size = self._size.next
        in_no_hurry = now + self.costs.seconds(size)
        for ticket in waiting:
            if ticket.key != batch[0].key:
                continue
            if rows + ticket.rows > size:
                return batch, True
            if ticket.deadline < tightest:  # noqa: PLR1730 - min is a call for each request
                tightest = ticket.deadline
            if tightest < in_no_hurry and now + self.costs.seconds(rows + ticket.rows) > tightest:
                return batch, True
            batch.append(ticket)
            rows += ticket.rows
            if rows >= size:
                break
        return batch, rows >= size

    def _is_open(self, number: int) -> bool:
        return number in self._lanes or number in self._running or number in self._shifts

    def _compact(self) -> None:
        """Drop deadlines of answered requests before they outnumber the open ones.

        Without this, every answered request would stay in memory until its deadline.
        """
        if len(self._deadlines) > 2 * (self._lanes.count + len(self._shifts)) + _SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._is_open(entry[1])]
            heapq.heapify(self._deadlines)


def _too_many_rows(rows: int, limit: int) -> MlctlError:
    return MlctlError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"the request has {rows} rows, the limit is {limit}"
    )
