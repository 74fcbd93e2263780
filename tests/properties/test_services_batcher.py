"""The batching policy's invariants, over any order of arrivals, departures, ends and time."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bundle.errors import ErrorCode, MlctlError
from services.batcher import Batcher, Limits, QueueFullError, Ticket

MAX_ROWS, MAX_QUEUE, MAX_WAIT = 8, 20, 0.5
SECONDS = st.integers(0, 24).map(lambda eighths: eighths / 8)  # sums of these are exact


class Policy(RuleBasedStateMachine):
    """Plays a server around a `Batcher` and keeps its own, naive books."""

    joinable = True

    def __init__(self) -> None:
        super().__init__()
        self.policy = Batcher(Limits(MAX_ROWS, MAX_QUEUE, MAX_WAIT, self.joinable))
        self.now = 0.0
        self.waiting: dict[int, Ticket] = {}
        self.running: list[Ticket] = []
        self.told_late: set[int] = set()
        self.left: set[int] = set()

    @rule(rows=st.integers(1, MAX_QUEUE + 1), key=st.sampled_from("ab"), time=SECONDS)
    def offer(self, rows: int, key: str, time: float) -> None:
        queued = sum(ticket.rows for ticket in self.waiting.values())
        try:
            ticket = self.policy.offer(rows, key, self.now, self.now + time)
        except QueueFullError as error:
            assert queued + rows > MAX_QUEUE
            assert error.retry_after >= 0
        except MlctlError as error:
            too_large = error.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert (rows > MAX_QUEUE) if too_large else (time == 0)
        else:
            assert queued + rows <= MAX_QUEUE
            assert ticket.prompt == (not self.waiting and not self.policy.busy)
            self.waiting[ticket.number] = ticket

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        everyone = [*self.waiting.values(), *self.running]
        if everyone:
            ticket = data.draw(st.sampled_from(everyone))
            assert self.policy.cancel(ticket) == (ticket.number in self.waiting)
            self.waiting.pop(ticket.number, None)
            self.left.add(ticket.number)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = self.policy.expire(self.now)
        expected = {number for number, t in self.waiting.items() if t.deadline <= self.now}
        expected |= {
            t.number
            for t in self.running
            if t.deadline <= self.now and t.number not in self.told_late | self.left
        }
        assert {ticket.number for ticket in overdue} == expected
        assert len(overdue) == len(expected)
        self.told_late |= expected
        for number in expected:
            self.waiting.pop(number, None)

    @rule()
    def release(self) -> None:
        batch = self.policy.release(self.now)
        if not batch:
            oldest = next(iter(self.waiting.values()), None)
            waited = oldest is not None and self.now - oldest.arrived >= MAX_WAIT
            assert self.policy.busy or oldest is None or not (waited or oldest.prompt)
            return
        assert not self.running
        assert batch[0] is next(iter(self.waiting.values()))
        assert len({ticket.key for ticket in batch}) == 1
        assert len(batch) == 1 or self.joinable
        assert len(batch) == 1 or sum(ticket.rows for ticket in batch) <= MAX_ROWS
        assert [t.number for t in batch] == sorted(t.number for t in batch)
        for ticket in batch:
            del self.waiting[ticket.number]  # once only, and only who waits
        self.running = batch

    @rule(seconds=SECONDS)
    def finish(self, seconds: float) -> None:
        if self.running:
            self.policy.finished(seconds)
            self.running = []

    @invariant()
    def the_books_agree(self) -> None:
        assert self.policy.waiting_rows == sum(t.rows for t in self.waiting.values())
        assert self.policy.waiting_rows <= MAX_QUEUE
        assert self.policy.busy == bool(self.running)
        assert self.policy.idle == (not self.waiting and not self.running)

    @invariant()
    def nobody_who_waits_is_forgotten(self) -> None:
        moment = self.policy.next_event()
        for ticket in self.waiting.values():
            assert moment is not None
            assert moment <= ticket.deadline


class Unjoined(Policy):
    """The same for a model whose rows depend on each other."""

    joinable = False


TestJoined: Any = Policy.TestCase
TestJoined.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestUnjoined: Any = Unjoined.TestCase
TestUnjoined.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
