"""The invariants of the policy for requests that run in steps."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Limits, QueueFullError
from mlctl.services.online.batching.scheduler import Ticket
from mlctl.services.online.batching.step_scheduler import StepScheduler

MAX_ROWS, MAX_QUEUE, MAX_OPEN = 8, 20, 3
SECONDS = st.integers(0, 24).map(lambda eighths: eighths / 8)  # sums of these are exact

AHEAD = SECONDS.map(lambda seconds: 4 * seconds)


class Turns(RuleBasedStateMachine):
    """Plays a server that runs each step that is released, and keeps its own, naive books."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = StepScheduler(Limits(MAX_ROWS, MAX_QUEUE), MAX_OPEN)
        self.now = 0.0
        self.waiting: dict[int, Ticket] = {}
        self.parked: dict[int, Ticket] = {}
        self.running: Ticket | None = None
        self.over: set[int] = set()

    @property
    def queued(self) -> dict[int, Ticket]:
        return self.waiting | self.parked

    @property
    def open(self) -> list[Ticket]:
        running = self.running
        stays = running is not None and running.number not in self.over
        return [*self.queued.values(), *([running] if running and stays else [])]

    @rule(rows=st.integers(1, MAX_QUEUE + 1), time=AHEAD)
    def offer(self, rows: int, time: float) -> None:
        queued = sum(ticket.rows for ticket in self.queued.values())
        count = len(self.open)
        ticket = Ticket(rows, None, self.now, self.now + time)
        try:
            self.policy.offer(ticket)
        except QueueFullError as error:
            assert error.retry_after >= 0
            assert count >= MAX_OPEN or (queued and queued + rows > MAX_QUEUE)
        except MlctlError as error:
            too_large = error.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert (rows > MAX_QUEUE) if too_large else (time == 0)
        else:
            assert count < MAX_OPEN
            assert queued == 0 or queued + rows <= MAX_QUEUE
            self.waiting[ticket.number] = ticket
            self.pump()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.open))
        self.policy.cancel(ticket)
        self.forget(ticket.number)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        late = {ticket.number for ticket in self.open if ticket.deadline <= self.now}
        overdue = [ticket.number for ticket in self.policy.expire(self.now)]
        assert len(set(overdue)) == len(overdue)
        assert set(overdue) == late
        for number in overdue:
            self.forget(number)

    def forget(self, number: int) -> None:
        self.over.add(number)
        self.waiting.pop(number, None)
        self.parked.pop(number, None)

    def pump(self) -> None:
        ticket = self.policy.release()
        if ticket is None:
            assert self.running or not self.waiting
            return
        assert self.running is None
        assert ticket.number == next(iter(self.waiting))
        self.running = self.waiting.pop(ticket.number)

    @precondition(lambda self: self.running)
    @rule(more=SECONDS, last=st.booleans(), parked=st.booleans())
    def finish(self, more: float, last: bool, parked: bool) -> None:
        ran, self.running = self.running, None
        assert ran is not None
        deadline = None if last else max(ran.deadline, self.now + more)
        self.policy.stepped(deadline, parked=parked)
        if deadline is None or ran.number in self.over:
            self.over.add(ran.number)
        else:
            place = self.parked if parked else self.waiting
            place[ran.number] = ran
            assert ran.deadline == deadline
        self.pump()  # as a server does

    @precondition(lambda self: self.open)
    @rule(data=st.data(), time=SECONDS)
    def resume(self, data: st.DataObject, time: float) -> None:
        ticket = data.draw(st.sampled_from(self.open))
        was = self.parked.pop(ticket.number, None)
        deadline = max(ticket.deadline, self.now + time)
        assert self.policy.resume(ticket, deadline) == (was is not None)
        if was is not None:
            self.waiting[ticket.number] = was
            assert was.deadline == deadline
        self.pump()

    @invariant()
    def the_books_agree(self) -> None:
        assert self.policy.waiting_rows == sum(t.rows for t in self.queued.values())
        assert self.policy.busy == (self.running is not None)
        assert self.policy.next_event() == min([t.deadline for t in self.open], default=None)


TestTurns: Any = Turns.TestCase
TestTurns.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
