"""The two lanes in which requests wait: each is first come first served, neither starves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from bundle.errors import ErrorCode, MlctlError

# HTTP's header and gRPC's metadata that name a lane; they win over what the body says.
LANE_HEADER = "mlctl-priority"
# So many batches in a row may be led by the high lane while a normal request waits.
TURNS = 4


class Priority(StrEnum):
    """Which lane a request waits in."""

    HIGH = "high"
    NORMAL = "normal"


# Triton's clients send a number: 0 for the default, 1 for the highest level.
_SPELLINGS = {
    "high": Priority.HIGH,
    "normal": Priority.NORMAL,
    "1": Priority.HIGH,
    "0": Priority.NORMAL,
    "2": Priority.NORMAL,
}


def parse_priority(value: object) -> Priority:
    """The lane that a request's `priority` names: high, normal, or Triton's 0, 1, 2."""
    known = None if isinstance(value, bool) else _SPELLINGS.get(str(value).lower())
    if known is None:
        raise MlctlError(ErrorCode.INVALID_INPUT, "priority must be high or normal")
    return known


def named_lane(values: Iterable[str]) -> Priority | None:
    """The lane that the values of all headers `LANE_HEADER` name; None if there are none.

    Equal ones are one. Raises what `parse_priority` does, for several that differ as well.
    """
    named = list(dict.fromkeys(values))
    return parse_priority(", ".join(named)) if named else None


class Ticket(NamedTuple):
    """One waiting or running request. `prompt` if it came to an idle server and must not wait.

    `long` if it runs in steps.

    A tuple, as one is made for every request and a frozen dataclass takes three times as long.
    """

    number: int
    rows: int
    key: Hashable
    arrived: float
    deadline: float
    prompt: bool
    priority: Priority = Priority.NORMAL
    long: bool = False


class Lanes:
    """The waiting requests."""

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
        """Put `ticket` at its lane's end."""
        if ticket.priority is Priority.HIGH:
            self._high[ticket.number] = ticket
            self.high_rows += ticket.rows
        else:
            self._normal[ticket.number] = ticket
        self.rows += ticket.rows
        self.count += 1

    def get(self, number: int) -> Ticket | None:
        """The ticket of that number, if it waits."""
        return self._normal.get(number) or self._high.get(number)

    def remove(self, number: int) -> Ticket | None:
        """Take a ticket out; None if it does not wait."""
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
        """Rows and requests that a new ticket of `priority` would wait behind."""
        if priority is Priority.HIGH:
            return self.high_rows, len(self._high)
        return self.rows, self.count

    def oldest(self) -> Ticket:
        """The ticket that has waited longest; there must be one."""
        heads = [next(iter(lane.values())) for lane in (self._high, self._normal) if lane]
        return min(heads, key=lambda ticket: ticket.arrived)

    def in_turn(self) -> Iterator[Ticket]:
        """All of them in the order in which the next batch takes them."""
        if not self._high:
            return iter(self._normal.values())
        lanes = (self._high, self._normal)
        if self._passed_over >= TURNS:
            lanes = (self._normal, self._high)
        return chain(lanes[0].values(), lanes[1].values())

    def release(self, batch: list[Ticket]) -> None:
        """Take out a batch; who led it decides when the normal lane leads next."""
        normal_waits = bool(self._normal)
        for ticket in batch:
            self.remove(ticket.number)
        led_by_high = batch[0].priority is Priority.HIGH
        self._passed_over = self._passed_over + 1 if led_by_high and normal_waits else 0
