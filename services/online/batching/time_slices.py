"""Long work of a model: done in steps, each of them in turn. Pure.

A request of more rows than a batch, or an answer that is made in pieces, would hold the
model for as long as it takes. So it has one step at a time, and waits in between.
"""

from __future__ import annotations

from services.online.batching.priority_queue import PriorityQueue, Ticket


class TimeSlicedQueue:
    """The long work that does not run just now: `waiting` for its turn, or parked.

    What is parked waits for its reader, and has no turn until it is resumed. Turns are by lane,
    as those of batches are.
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
        """How much of it could have its turn now."""
        return self._waiting.count

    def get(self, number: int) -> Ticket | None:
        """The ticket of that number, if it is here."""
        return self._waiting.get(number) or self._parked.get(number)

    def add(self, ticket: Ticket, *, parked: bool = False) -> None:
        """Put `ticket` at its lane's end, or aside."""
        if parked:
            self._parked[ticket.number] = ticket
        else:
            self._waiting.add(ticket)
        self.rows += ticket.rows

    def remove(self, number: int) -> Ticket | None:
        """Take a ticket out; None if it is not here."""
        ticket = self._waiting.remove(number) or self._parked.pop(number, None)
        if ticket is not None:
            self.rows -= ticket.rows
        return ticket

    def resume(self, number: int, deadline: float) -> bool:
        """Give a parked ticket its turns again, and a new deadline; whether it was parked."""
        if number not in self._parked:
            return False
        ticket = self._parked.pop(number)
        self._waiting.add(ticket._replace(deadline=deadline))
        return True

    def pop(self) -> Ticket:
        """Take out whose turn it is; somebody must be waiting."""
        ticket = next(iter(self._waiting.in_turn()))
        self._waiting.release([ticket])
        self.rows -= ticket.rows
        return ticket
