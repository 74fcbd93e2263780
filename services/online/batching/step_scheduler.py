"""Scheduling policy of a model that answers in pieces: which request makes its next step. Pure.

A streamed answer would block the model until its end. So each request runs in steps, and requests
take turns: round robin within a priority, and neither priority starves.
"""

from __future__ import annotations

from mlctl.services.online.batching.admission import (
    BusyError,
    Limits,
    deadline_exceeded,
    too_many_rows,
)
from mlctl.services.online.batching.scheduler import PriorityQueue, Ticket

# Each open request keeps a generator of the user's with its state.
MAX_OPEN = 64


class StepScheduler:
    """The open requests of one model, and its one running step.

    A parked request waits for its reader and gets no turn until it is resumed.
    """

    def __init__(self, limits: Limits, max_open: int = MAX_OPEN) -> None:
        self.limits = limits
        self.busy = False
        self._max_open = max_open
        self._waiting: PriorityQueue[Ticket] = PriorityQueue()
        self._parked: dict[Ticket, None] = {}
        self._running: Ticket | None = None
        self._next = 0

    @property
    def waiting_rows(self) -> int:
        """The rows of waiting and parked requests."""
        return self._waiting.rows + sum([ticket.rows for ticket in self._parked])

    def offer(self, ticket: Ticket) -> None:
        """Accept a request, or raise.

        QUEUE_FULL at the limit of open requests or of their rows; PAYLOAD_TOO_LARGE for more rows
        than could ever wait; DEADLINE_EXCEEDED if the deadline has passed already.
        """
        rows, limit = ticket.rows, self.limits.max_queue_rows
        if rows > limit:
            raise too_many_rows(rows, limit)
        if ticket.deadline <= ticket.arrived:
            raise deadline_exceeded()
        count = len(self._open())
        if count >= self._max_open:
            raise BusyError(f"{count} streams are open already, the limit is {self._max_open}")
        waiting = self.waiting_rows
        if waiting and waiting + rows > limit:
            raise BusyError(f"{waiting} rows wait already, the limit is {limit}")
        ticket.number = self._next
        self._next += 1
        self._waiting.add(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Drop a request, if it is open; a running step goes on to its end."""
        if self._running is ticket:
            self._running = None
        self._waiting.remove(ticket)
        self._parked.pop(ticket, None)

    def expire(self, now: float) -> list[Ticket]:
        """Remove and return the requests whose deadline has passed, each once."""
        overdue = [ticket for ticket in self._open() if ticket.deadline <= now]
        for ticket in overdue:
            self.cancel(ticket)
        return overdue

    def release(self) -> Ticket | None:
        """Return the request whose next step starts now; None to wait."""
        if self.busy or not self._waiting.count:
            return None
        ticket = next(iter(self._waiting.in_turn()))
        self._waiting.release([ticket])
        self._running, self.busy = ticket, True
        return ticket

    def stepped(self, deadline: float | None = None, *, parked: bool = False) -> None:
        """Record that the running step ended.

        `deadline` is that of the remaining steps; None after the last one. The request is queued
        again, or `parked` until `resume`, unless it was cancelled or has expired.
        """
        ticket, self._running, self.busy = self._running, None, False
        if ticket is None or deadline is None:
            return
        ticket.deadline = deadline
        if parked:
            self._parked[ticket] = None
        else:
            self._waiting.add(ticket)

    def resume(self, ticket: Ticket, deadline: float) -> bool:
        """Queue a parked request again with a new deadline; return whether it was parked."""
        if ticket not in self._parked:
            return False
        del self._parked[ticket]
        ticket.deadline = deadline
        self._waiting.add(ticket)
        return True

    def next_event(self) -> float | None:
        """Return when to call `expire` again if nothing else happens, or None."""
        return min([ticket.deadline for ticket in self._open()], default=None)

    def _open(self) -> list[Ticket]:
        running = [] if self._running is None else [self._running]
        return [*running, *self._waiting.in_turn(), *self._parked]
