"""The batching policy's invariants, over any order of arrivals, departures, ends and time."""

from __future__ import annotations

from math import inf
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.online.batching.scheduler import (
    MAX_CONSECUTIVE_HIGH,
    BatchScheduler,
    Limits,
    Priority,
    QueueFullError,
    Ticket,
)

MAX_ROWS, MAX_QUEUE = 8, 20
SECONDS = st.integers(0, 24).map(lambda eighths: eighths / 8)  # sums of these are exact


class Policy(RuleBasedStateMachine):
    """Plays a server around a `BatchScheduler` and keeps its own, naive books."""

    joinable = True
    max_wait = 0.0
    max_queue: float | None = None

    def __init__(self) -> None:
        super().__init__()
        limits = Limits(
            MAX_ROWS,
            MAX_QUEUE,
            self.max_wait,
            self.joinable,
            self.max_queue,
        )
        self.policy: BatchScheduler[Ticket] = BatchScheduler(limits, BatchCosts({1: 0.25, 8: 0.5}))
        self.now = 0.0
        self.waiting: dict[int, Ticket] = {}
        self.running: list[Ticket] = []
        self.answered_or_told: set[int] = set()
        self.last_starts: dict[int, float] = {}
        self.heads_passed_over = 0
        self.looked = 0.0  # when the last batch ended

    @rule(
        rows=st.integers(1, MAX_QUEUE + 1),
        key=st.sampled_from("ab"),
        time=SECONDS,
        priority=st.sampled_from(Priority),
    )
    def offer(self, rows: int, key: str, time: float, priority: Priority) -> None:
        queued = sum(ticket.rows for ticket in self.waiting.values())
        idle = not self.waiting and not self.running
        ticket = Ticket(rows, key, self.now, self.now + time, priority)
        try:
            self.policy.offer(ticket)
        except QueueFullError as error:
            assert not idle
            assert error.retry_after >= 0
        except MlctlError as error:
            too_large = error.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert (rows > MAX_QUEUE) if too_large else (time == 0)
        else:
            assert queued + rows <= MAX_QUEUE
            assert ticket.prompt == idle or (self.max_wait and not ticket.prompt)
            self.waiting[ticket.number] = ticket
            expected = self.policy.costs.seconds(rows)
            self.last_starts[ticket.number] = ticket.deadline - expected

    @rule(rows=st.integers(1, 2), priority=st.sampled_from(Priority))
    def refuse_without_a_look(self, rows: int, priority: Priority) -> None:
        if self.policy.quick_reject(rows, priority, self.now) is not None:
            with pytest.raises(QueueFullError):
                self.policy.offer(Ticket(rows, "a", self.now, self.now + 100.0, priority))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        everyone = [*self.waiting.values(), *self.running]
        if everyone:
            ticket = data.draw(st.sampled_from(everyone))
            assert self.policy.cancel(ticket) == (ticket.number in self.waiting)
            self.waiting.pop(ticket.number, None)
            self.answered_or_told.add(ticket.number)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = self.policy.expire(self.now)
        told = {ticket.number for ticket in overdue}
        assert len(told) == len(overdue)
        assert not told & self.answered_or_told  # each of them once
        late = {number for number, t in self.waiting.items() if t.deadline <= self.now}
        open_late = {t.number for t in self.running if t.deadline <= self.now}
        assert late | (open_late - self.answered_or_told) <= told
        # Nobody else, but those who could not be answered any more.
        for number in told - late - open_late:
            ticket = self.waiting[number]
            assert not ticket.prompt
            assert self.last_starts[number] <= self.now
        self.answered_or_told |= told
        for number in told:
            self.waiting.pop(number, None)

    @rule()
    def release(self) -> None:
        batch = self.policy.release(self.now)
        if not batch:
            oldest = min(self.waiting.values(), key=lambda t: t.number, default=None)
            waited = oldest is not None and self.now >= self._latest(oldest)
            assert self.policy.busy or oldest is None or not (waited or oldest.prompt)
            return
        assert not self.running
        assert len({ticket.key for ticket in batch}) == 1
        assert len(batch) == 1 or self.joinable
        assert len(batch) == 1 or sum(ticket.rows for ticket in batch) <= MAX_ROWS
        self._assert_fair(batch)
        for ticket in batch:
            del self.waiting[ticket.number]  # once only, and only who waits
        self.running = batch

    def _latest(self, ticket: Ticket) -> float:
        """Until when a ticket may be held back."""
        # From the batch's end or when it came, by no more than a batch costs.
        longest = min(self.max_wait, self.policy.costs.seconds(MAX_ROWS))
        return max(self.looked, ticket.arrived) + longest

    def _assert_fair(self, batch: list[Ticket]) -> None:
        """First come first served in each lane, and neither lane's head waits for ever."""
        heads: dict[Priority, Ticket] = {}
        for ticket in self.waiting.values():
            heads.setdefault(ticket.priority, ticket)
        assert batch[0] is heads[batch[0].priority]
        for lane in Priority:
            mine = [ticket.number for ticket in batch if ticket.priority is lane]
            assert mine == sorted(mine)
        normal = heads.get(Priority.NORMAL)
        led_by_high = batch[0].priority is Priority.HIGH
        passed = led_by_high and normal is not None and normal not in batch
        self.heads_passed_over = self.heads_passed_over + 1 if passed else 0
        assert self.heads_passed_over <= MAX_CONSECUTIVE_HIGH

    @rule(seconds=SECONDS, clean=st.booleans())
    def finish(self, seconds: float, clean: bool) -> None:
        if self.running:
            self.policy.finished(seconds, clean=clean)
            self.answered_or_told |= {ticket.number for ticket in self.running}
            self.running = []
            self.looked = self.now
            self.release()  # as a server does

    @invariant()
    def the_books_agree(self) -> None:
        assert self.policy.waiting_rows == sum(t.rows for t in self.waiting.values())
        assert self.policy.waiting_rows <= MAX_QUEUE
        assert self.policy.busy == bool(self.running)
        assert self.policy.idle == (not self.waiting and not self.running)

    @invariant()
    def nobody_who_waits_is_forgotten(self) -> None:
        moment = self.policy.next_event(self.now)
        for ticket in self.waiting.values():
            assert moment is not None
            assert moment <= ticket.deadline
            if not self.running:
                assert moment <= max(self.now, self._latest(ticket))

    @invariant()
    def more_rows_never_cost_less(self) -> None:
        seconds = [self.policy.costs.seconds(rows) for rows in range(1, 2 * MAX_QUEUE)]
        assert seconds == sorted(seconds)


class Unjoined(Policy):
    """The same for a model whose rows depend on each other."""

    joinable = False


class Gathered(Policy):
    """The same where those who were just answered may be waited for."""

    max_wait = inf


class Capped(Policy):
    """The same with a limit on that wait."""

    max_wait = 0.125


class Brief(Policy):
    """The same where only a short wait is accepted."""

    max_queue = 0.1


TestJoined: Any = Policy.TestCase
TestJoined.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestUnjoined: Any = Unjoined.TestCase
TestUnjoined.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestGathered: Any = Gathered.TestCase
TestGathered.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCapped: Any = Capped.TestCase
TestCapped.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBrief: Any = Brief.TestCase
TestBrief.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
