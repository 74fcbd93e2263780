"""The queue of requests that run in steps, such as streams, one step per turn. Pure.

A streamed answer would otherwise block the model until its end.
"""

from __future__ import annotations

from services.online.batching.priority_queue import PriorityQueue, Ticket


class TimeSlicedQueue:
    """The stepwise requests that do not run now: `waiting` for their turn, or parked.

    A parked request waits for its reader and gets no turn until it is resumed. Turns follow the
    priorities, as those of batches do.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._waiting = PriorityQueue()
        self._parked: dict[int, Ticket] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._waiting or number in self._parked

    def __len__(self) -> int:
        return self._waiting.count + len(self._parked)

    @property
    def waiting(self) -> int:
        """The number of requests that can have their turn now."""
        return self._waiting.count

    def get(self, number: int) -> Ticket | None:
        """Return the ticket with this number, or None."""
        return self._waiting.get(number) or self._parked.get(number)

    def add(self, ticket: Ticket, *, parked: bool = False) -> None:
        """Append `ticket` to the queue of its priority, or park it."""
        if parked:
            self._parked[ticket.number] = ticket
        else:
            self._waiting.add(ticket)
        self.rows += ticket.rows

    def remove(self, number: int) -> Ticket | None:
        """Remove and return a ticket, or None."""
        ticket = self._waiting.remove(number) or self._parked.pop(number, None)
        if ticket is not None:
            self.rows -= ticket.rows
        return ticket

    def resume(self, number: int, deadline: float) -> bool:
        """Queue a parked ticket again with a new deadline; return whether it was parked."""
        if number not in self._parked:
            return False
        ticket = self._parked.pop(number)
        self._waiting.add(ticket._replace(deadline=deadline))
        return True

    def pop(self) -> Ticket:
        """Remove and return the ticket whose turn it is; one must be waiting."""
        ticket = next(iter(self._waiting.in_turn()))
        self._waiting.release([ticket])
        self.rows -= ticket.rows
        return ticket
