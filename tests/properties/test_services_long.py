"""The batching policy's invariants where requests that run in steps take turns with batches."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.admission import Limits, QueueFullError
from services.online.batching.priority_queue import Ticket
from services.online.batching.scheduler import BatchScheduler
from services.runtime.batch_costs import BatchCosts

MAX_ROWS, MAX_QUEUE, MAX_LONG = 8, 20, 3
SECONDS = st.integers(0, 24).map(lambda eighths: eighths / 8)  # sums of these are exact

AHEAD = SECONDS.map(lambda seconds: 4 * seconds)


class Turns(RuleBasedStateMachine):
    """Plays a server that runs whatever is released, and keeps its own, naive books."""

    def __init__(self) -> None:
        super().__init__()
        limits = Limits(MAX_ROWS, MAX_QUEUE, max_long=MAX_LONG)
        self.policy = BatchScheduler(limits, BatchCosts({1: 0.25, 8: 0.5}))
        self.now = 0.0
        self.short: dict[int, Ticket] = {}
        self.long: dict[int, Ticket] = {}
        self.parked: dict[int, Ticket] = {}
        self.running: list[Ticket] = []
        self.over: set[int] = set()
        self.led_by_long: bool | None = None

    @property
    def waiting(self) -> dict[int, Ticket]:
        return self.short | self.long | self.parked

    @rule(rows=st.integers(1, MAX_ROWS), time=AHEAD)
    def offer(self, rows: int, time: float) -> None:
        try:
            ticket = self.policy.offer(rows, "a", self.now, self.now + time)
        except MlctlError as error:
            assert isinstance(error, QueueFullError) or time == 0
        else:
            self.short[ticket.number] = ticket
            self.pump()

    @rule(rows=st.integers(MAX_ROWS + 1, MAX_QUEUE + 1), time=AHEAD)
    def offer_long(self, rows: int, time: float) -> None:
        there = [*self.long.values(), *self.parked.values()]
        held = sum(ticket.rows for ticket in there)
        count = len(there) + any(t.long and t.number not in self.over for t in self.running)
        try:
            ticket = self.policy.offer_long(rows, self.now, self.now + time)
        except QueueFullError as error:
            assert error.retry_after >= 0
            assert count >= MAX_LONG or (held and held + rows > MAX_QUEUE)
        except MlctlError as error:
            too_large = error.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert (rows > MAX_QUEUE) if too_large else (time == 0)
        else:
            assert count < MAX_LONG
            assert held == 0 or held + rows <= MAX_QUEUE
            assert ticket.long
            self.long[ticket.number] = ticket
            self.pump()

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        everyone = [*self.waiting.values(), *self.running]
        ticket = data.draw(st.sampled_from(everyone))
        assert self.policy.cancel(ticket) == (ticket.number in self.waiting)
        self.forget(ticket.number)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = self.policy.expire(self.now)
        told = {ticket.number for ticket in overdue}
        assert len(told) == len(overdue)
        assert not told & self.over  # each of them once
        everyone = self.waiting | {ticket.number: ticket for ticket in self.running}
        late = {number for number, ticket in everyone.items() if ticket.deadline <= self.now}
        assert late - self.over <= told
        # A step that was begun in time, and a place aside, are nobody else's to take.
        assert told - late <= set(self.short)
        for number in told:
            self.forget(number)

    def forget(self, number: int) -> None:
        self.over.add(number)
        for place in (self.short, self.long, self.parked):
            place.pop(number, None)

    def pump(self) -> None:
        batch = self.policy.release(self.now)
        if not batch:
            assert self.running or not (self.short or self.long)
            return
        assert not self.running
        assert not {ticket.number for ticket in batch} & self.over
        led = batch[0].long
        if self.short and self.long:  # in turn
            assert led is not self.led_by_long
        if led:
            assert [ticket.number for ticket in batch] == [next(iter(self.long))]
        for ticket in batch:
            (self.long if led else self.short).pop(ticket.number)
        self.running, self.led_by_long = batch, led

    @precondition(lambda self: self.running)
    @rule(seconds=SECONDS, more=SECONDS, last=st.booleans(), parked=st.booleans())
    def finish(self, seconds: float, more: float, last: bool, parked: bool) -> None:
        ran, self.running = self.running, []
        if ran[0].long:
            # Each piece has as long as the one before it: never is a deadline brought forward.
            deadline = None if last else max(ran[0].deadline, self.now + more)
            self.policy.stepped(seconds, deadline, parked=parked)
            if deadline is None or ran[0].number in self.over:
                self.over.add(ran[0].number)
            else:
                place = self.parked if parked else self.long
                place[ran[0].number] = ran[0]._replace(deadline=deadline)
        else:
            self.policy.finished(seconds)
            self.over |= {ticket.number for ticket in ran}
        self.pump()  # as a server does

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data(), time=SECONDS)
    def resume(self, data: st.DataObject, time: float) -> None:
        ticket = data.draw(st.sampled_from([*self.waiting.values(), *self.running]))
        was = self.parked.pop(ticket.number, None)
        deadline = max(ticket.deadline, self.now + time)
        assert self.policy.resume(ticket, deadline) == (was is not None)
        if was is not None:
            self.long[ticket.number] = was._replace(deadline=deadline)
        self.pump()

    @invariant()
    def the_books_agree(self) -> None:
        assert self.policy.waiting_rows == sum(t.rows for t in self.waiting.values())
        assert self.policy.busy == bool(self.running)
        assert self.policy.idle == (not self.running and not self.short and not self.long)

    @invariant()
    def nobody_who_waits_is_forgotten(self) -> None:
        moment = self.policy.next_event(self.now)
        for ticket in self.waiting.values():
            assert moment is not None
            assert moment <= max(self.now, ticket.deadline)


TestTurns: Any = Turns.TestCase
TestTurns.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
