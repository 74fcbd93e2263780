"""The waiting requests of one model: each priority in arrival order, and neither starves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import chain
from math import inf
from typing import Generic, TypeVar

from services.protocol.priority import Priority

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
    """Waiting tickets in two queues, one per priority."""

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
