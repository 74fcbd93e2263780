"""The batching policy: which requests run together, and when. Pure; time is passed in.

Invariants: every accepted ticket leaves exactly once (released, cancelled or expired);
waiting rows never exceed the limit; at most one batch runs; tickets are joined only if
the model's rows are independent and their keys are equal; within a key first come is
first served, and the oldest ticket is in the next batch, so nobody starves.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from bundle.errors import ErrorCode, MlctlError

# How much the newest batch moves the running mean of batch times.
_WEIGHT = 0.2
_SPARE_DEADLINES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_rows` of a batch, `max_queue_rows` waiting, `max_wait` seconds to hold back."""

    max_rows: int
    max_queue_rows: int
    max_wait: float = 0.0
    joinable: bool = True


@dataclass(frozen=True, slots=True)
class Ticket:
    """One waiting or running request. `prompt` if it came to an idle server and must not wait."""

    number: int
    rows: int
    key: Hashable
    arrived: float
    deadline: float
    prompt: bool


class QueueFullError(MlctlError):
    """QUEUE_FULL with the seconds after which a retry is likely to be accepted."""

    def __init__(self, rows: int, limit: int, retry_after: float) -> None:
        super().__init__(ErrorCode.QUEUE_FULL, f"{rows} rows wait already, the limit is {limit}")
        self.retry_after = retry_after


class Batcher:
    """The queue of one model and its one running batch."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting_rows = 0
        self._waiting: OrderedDict[int, Ticket] = OrderedDict()
        self._running: dict[int, Ticket] = {}
        self._busy = False
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0
        self._batch_seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether a batch is running."""
        return self._busy

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._busy and not self._waiting

    def offer(self, rows: int, key: Hashable, now: float, deadline: float) -> Ticket:
        """Accept a request of `rows` rows, or raise.

        QUEUE_FULL with a computed retry time; PAYLOAD_TOO_LARGE for more rows than
        could ever wait; DEADLINE_EXCEEDED if the deadline has passed already.
        """
        limit = self.limits.max_queue_rows
        if rows > limit:
            raise MlctlError(
                ErrorCode.PAYLOAD_TOO_LARGE, f"the request has {rows} rows, the limit is {limit}"
            )
        if deadline <= now:
            raise deadline_exceeded()
        if self.waiting_rows + rows > limit:
            raise QueueFullError(self.waiting_rows, limit, self.retry_after())
        ticket = Ticket(self._next, rows, key, now, deadline, prompt=self.idle)
        self._next += 1
        self._waiting[ticket.number] = ticket
        self.waiting_rows += rows
        heapq.heappush(self._deadlines, (deadline, ticket.number))
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Forget a request whose caller left; whether it had not been released yet."""
        self._running.pop(ticket.number, None)
        return self._forget_waiting(ticket.number)

    def expire(self, now: float) -> list[Ticket]:
        """Remove and return the requests whose deadline has passed.

        A running one is returned too, once, so that its caller can be told; its
        batch keeps the slot until it has finished.
        """
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now:
            number = heapq.heappop(self._deadlines)[1]
            ticket = self._waiting.get(number) or self._running.pop(number, None)
            self._forget_waiting(number)
            if ticket is not None:
                overdue.append(ticket)
        return overdue

    def release(self, now: float) -> list[Ticket]:
        """The requests to run together now, oldest first; empty if it is better to wait."""
        if self._busy or not self._waiting:
            return []
        batch, full = self._compose()
        if not (full or batch[0].prompt or now - batch[0].arrived >= self.limits.max_wait):
            return []
        for ticket in batch:
            self._forget_waiting(ticket.number)
        self._running = {ticket.number: ticket for ticket in batch}
        self._busy = True
        return batch

    def finished(self, seconds: float) -> None:
        """The running batch has ended after `seconds`; the slot is free."""
        self._running = {}
        self._busy = False
        self._compact()
        mean = self._batch_seconds
        self._batch_seconds = mean + _WEIGHT * (seconds - mean) if mean else seconds

    def next_event(self) -> float | None:
        """When to look again if nothing else happens: a deadline, or the end of a wait."""
        while self._deadlines and not self._is_open(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        moments = [self._deadlines[0][0]] if self._deadlines else []
        if self._waiting and not self._busy:
            moments.append(next(iter(self._waiting.values())).arrived + self.limits.max_wait)
        return min(moments, default=None)

    def retry_after(self) -> float:
        """Seconds until the queue as it is now has drained, by the mean batch time."""
        batches = -(-self.waiting_rows // self.limits.max_rows) + self._busy
        return batches * self._batch_seconds

    def _compose(self) -> tuple[list[Ticket], bool]:
        """The oldest ticket and those that may join it, and whether no more would fit."""
        waiting = iter(self._waiting.values())
        batch = [next(waiting)]
        rows = batch[0].rows
        if not self.limits.joinable:
            return batch, True
        for ticket in waiting:
            if rows >= self.limits.max_rows:
                break
            if ticket.key != batch[0].key:
                continue
            if rows + ticket.rows > self.limits.max_rows:
                return batch, True
            batch.append(ticket)
            rows += ticket.rows
        return batch, rows >= self.limits.max_rows

    def _is_open(self, number: int) -> bool:
        return number in self._waiting or number in self._running

    def _compact(self) -> None:
        """Drop deadlines of answered requests before they outnumber the open ones.

        Without this, every answered request would stay in memory until its deadline.
        """
        if len(self._deadlines) > 2 * len(self._waiting) + _SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._is_open(entry[1])]
            heapq.heapify(self._deadlines)

    def _forget_waiting(self, number: int) -> bool:
        ticket = self._waiting.pop(number, None)
        if ticket is not None:
            self.waiting_rows -= ticket.rows
        return ticket is not None


def deadline_exceeded() -> MlctlError:
    """The error of a request whose time is over."""
    return MlctlError(
        ErrorCode.DEADLINE_EXCEEDED, "the answer was not ready before the request's deadline"
    )
