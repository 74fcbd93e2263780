"""The waiting requests of one model: each priority in arrival order, and neither starves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import NamedTuple

from services.protocol.priority import Priority

# Up to this many consecutive batches start with a high-priority request while a normal one waits.
MAX_CONSECUTIVE_HIGH = 4


class Ticket(NamedTuple):
    """One waiting or running request.

    `prompt` if it arrived at an idle server and must not wait; `large` if it has many rows, or is
    a part of such a request.
    A tuple because one is created per request, and a frozen dataclass takes three times as long.
    """

    number: int
    rows: int
    key: Hashable
    arrived: float
    deadline: float
    prompt: bool
    priority: Priority = Priority.NORMAL
    large: bool = False


class PriorityQueue:
    """Waiting tickets in two queues, one per priority."""

    def __init__(self) -> None:
        self.count = 0
        self.rows = 0
        self.high_rows = 0
        self._high: OrderedDict[int, Ticket] = OrderedDict()
        self._normal: OrderedDict[int, Ticket] = OrderedDict()
        self._passed_over = 0

    def __contains__(self, number: int) -> bool:
        return number in self._high or number in self._normal

    def add(self, ticket: Ticket) -> None:
        """Append `ticket` to the queue of its priority."""
        if ticket.priority is Priority.HIGH:
            self._high[ticket.number] = ticket
            self.high_rows += ticket.rows
        else:
            self._normal[ticket.number] = ticket
        self.rows += ticket.rows
        self.count += 1

    def get(self, number: int) -> Ticket | None:
        """Return the waiting ticket with this number, or None."""
        return self._normal.get(number) or self._high.get(number)

    def remove(self, number: int) -> Ticket | None:
        """Remove and return a waiting ticket, or None."""
        ticket = self._normal.pop(number, None)
        if ticket is None:
            ticket = self._high.pop(number, None)
            if ticket is None:
                return None
            self.high_rows -= ticket.rows
        self.rows -= ticket.rows
        self.count -= 1
        return ticket

    def ahead_of(self, priority: Priority) -> tuple[int, int]:
        """Return the rows and requests that a new ticket of `priority` would wait behind."""
        if priority is Priority.HIGH:
            return self.high_rows, len(self._high)
        return self.rows, self.count

    def oldest(self) -> Ticket:
        """Return the ticket that has waited longest; the queue must not be empty."""
        heads = [next(iter(queue.values())) for queue in (self._high, self._normal) if queue]
        return min(heads, key=lambda ticket: ticket.arrived)

    def in_turn(self) -> Iterator[Ticket]:
        """Return all tickets in the order in which the next batch takes them."""
        if not self._high:
            return iter(self._normal.values())
        first, second = self._high, self._normal
        if self._passed_over >= MAX_CONSECUTIVE_HIGH:
            first, second = second, first
        return chain(first.values(), second.values())

    def release(self, batch: list[Ticket]) -> None:
        """Remove a batch; the priority of its first ticket decides when a normal one goes first."""
        normal_waits = bool(self._normal)
        for ticket in batch:
            self.remove(ticket.number)
        led_by_high = batch[0].priority is Priority.HIGH
        self._passed_over = self._passed_over + 1 if led_by_high and normal_waits else 0
