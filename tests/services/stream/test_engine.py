"""The pump: order, backpressure, retries, revoked and lost partitions, the limit, the end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import AnswerHeaders
from mlctl.services.stream.base import (
    Commit,
    Guarantee,
    LostPartitionsError,
    Message,
    RejectedAnswersError,
    RetryLaterError,
    StreamConnection,
    StreamUrl,
)
from mlctl.services.stream.batching import BatchGoals
from mlctl.services.stream.engine import RunSettings, StreamEngine, StreamReport
from mlctl.services.stream.events import StreamEvent, StreamPhase
from mlctl.services.stream.scoring import MessageScorer
from tests.services.stream.test_scoring import Doubling, Numbers
from tests.support.wait import PATIENCE_SECONDS

AWAY = MlctlError(ErrorCode.BROKER_UNAVAILABLE, "the broker is away")


@dataclass
class MemoryConnection(StreamConnection):
    """A stream in memory; `before_poll` and `before_commit` are called once each, in turn."""

    source: deque[Message]
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    committed: list[Commit] = field(default_factory=list)
    before_poll: deque[Callable[[MemoryConnection], None] | None] = field(default_factory=deque)
    before_commit: deque[Callable[[MemoryConnection], None] | None] = field(default_factory=deque)
    polls: list[int] = field(default_factory=list)
    taken: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None: ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        self.polls.append(limit)
        if self.before_poll and (act := self.before_poll.popleft()):
            act(self)
        if limit and not self.source:
            threading.Event().wait(min(wait_s, 0.02))
        found = [self.source.popleft() for _ in range(min(limit, len(self.source)))]
        self.taken += len(found)
        return found

    def commit(self, batch: Commit) -> None:
        if self.before_commit and (act := self.before_commit.popleft()):
            act(self)
        self.committed.append(batch)

    def lag(self) -> Mapping[str, int]:
        return {"0": len(self.source)}

    def group_lag(self) -> int:
        return len(self.source)

    def values(self) -> list[int]:
        return [int(each.content) for batch in self.committed for each in batch.answers]

    def offsets(self) -> list[int]:
        return [int(each.offset) for batch in self.committed for each in batch.done]


def stream_of(values: Sequence[bytes], partitions: int = 1) -> deque[Message]:
    return deque(Message(str(i % partitions), i, each) for i, each in enumerate(values))


def fail(error: Exception) -> Callable[[MemoryConnection], None]:
    def act(_link: MemoryConnection) -> None:
        raise error

    return act


@dataclass
class Ran:
    report: StreamReport | None
    events: list[StreamEvent]
    error: MlctlError | None = None

    def phases(self, phase: StreamPhase) -> list[StreamEvent]:
        return [event for event in self.events if event.phase is phase]


def pump_of(
    link: MemoryConnection, model: Doubling | None = None, **settings: object
) -> tuple[StreamEngine, list[StreamEvent]]:
    events: list[StreamEvent] = []
    scorer = MessageScorer(model or Doubling(), Numbers())
    stamp = AnswerHeaders(StreamUrl.parse("sqlite://e.db#in"), "tiny", "d" * 64)
    chosen = {"goals": BatchGoals(messages=16), "until_empty": True, **settings}
    return StreamEngine(link, scorer, stamp, RunSettings(**chosen), events.append), events  # type: ignore[arg-type]


def ran(link: MemoryConnection, model: Doubling | None = None, **settings: object) -> Ran:
    pump, events = pump_of(link, model, **settings)
    try:
        return Ran(pump.run(), events)
    except MlctlError as error:
        return Ran(None, events, error)


def plain(count: int) -> list[bytes]:
    return [b"%d" % (100 + n) for n in range(count)]


def test_stream__messages__are_answered_in_order() -> None:
    link = MemoryConnection(stream_of(plain(500)))
    found = ran(link)
    assert link.values() == [2 * (100 + n) for n in range(500)]
    assert link.offsets() == [*range(500)]
    assert found.report is not None
    assert (found.report.totals.answers, found.report.complete) == (500, True)
    assert max(len(batch.done) for batch in link.committed) <= 16
    assert [event.phase for event in found.events][:1] == [StreamPhase.STARTED]
    assert found.events[-1].phase is StreamPhase.FINISHED
    batches = [event.batch for event in found.phases(StreamPhase.COMMITTED) if event.batch]
    assert sum(batch.messages for batch in batches) == 500


def test_stream__few_poisoned_messages__are_dead_letters_with_reasons() -> None:
    values = plain(400)
    for place in (5, 111, 399):
        values[place] = b"13"
    values[200] = b""
    link = MemoryConnection(stream_of(values))
    found = ran(link)
    dead = [each for batch in link.committed for each in batch.dead]
    assert [each.value for each in dead] == [b"13", b"13", b"", b"13"]
    assert link.offsets() == [*range(400)]
    assert len(link.values()) == 396
    reasons = [
        e.batch.reasons for e in found.phases(StreamPhase.COMMITTED) if e.batch and e.batch.dead
    ]
    assert sum(each.get("internal", 0) for each in reasons) == 3
    assert sum(each.get("invalid_input", 0) for each in reasons) == 1


@pytest.mark.parametrize("poison", [b"13", b""])
def test_stream__poisoned__stops_before_the_batch_that_crosses_the_limit(poison: bytes) -> None:
    link = MemoryConnection(stream_of(plain(64) + [poison] * 500))
    found = ran(link)
    assert found.error is not None
    assert found.error.code is ErrorCode.TOO_MANY_DEAD_LETTERS
    assert sum(len(batch.dead) for batch in link.committed) < 20
    assert len(link.values()) == 64


def test_engine__broker_unavailable__run_waits() -> None:
    link = MemoryConnection(stream_of(plain(100)))
    link.before_poll.extend([fail(AWAY), None, fail(AWAY)])
    link.before_commit.extend([fail(AWAY), None, fail(AWAY)])
    pump, events = pump_of(link)
    pump.stop = Hasty()
    report = pump.run()
    assert report.totals.answers == 100
    assert link.values() == [2 * (100 + n) for n in range(100)]
    assert sum(event.phase is StreamPhase.PAUSED for event in events) == 4


def test_stream__destination_names_a_pause__is_waited_for() -> None:
    link = MemoryConnection(stream_of(plain(10)))
    link.before_commit.append(fail(RetryLaterError("busy", 37.0)))
    pump, events = pump_of(link)
    pump.stop = Hasty()
    assert pump.run().totals.answers == 10
    (paused,) = [event for event in events if event.phase is StreamPhase.PAUSED]
    assert paused.detail == "busy; trying again in 37.0 s"


def test_stream__broker_error__ends_after_patience_or_at_once() -> None:
    link = MemoryConnection(stream_of(plain(10)))
    link.before_commit.extend([fail(AWAY)] * 50)
    found = ran(link, patience_s=0.0)
    assert found.error is AWAY
    wrong = MlctlError(ErrorCode.INVALID_INPUT, "no such topic")
    found = ran(MemoryConnection(stream_of(plain(10)), before_poll=deque([fail(wrong)])))
    assert found.error is wrong


def test_stream__model_out_of_memory__gets_smaller_calls_and_no_dead_letter() -> None:
    link = MemoryConnection(stream_of([b"1"] * 60))
    model = Doubling(memory=4, max_rows=16)
    pump, events = pump_of(link, model)
    pump.stop = Hasty()
    pump.run()
    assert link.values() == [2] * 60
    assert model.max_rows == 4
    assert any("memory" in event.detail for event in events if event.phase is StreamPhase.PAUSED)


@pytest.mark.parametrize("in_time", [True, False])
def test_stream__revoked_partitions__are_committed_and_their_rest_dropped(
    in_time: bool,
) -> None:
    link = MemoryConnection(stream_of(plain(100), partitions=2))
    model = Held()

    def revoke(each: MemoryConnection) -> None:
        assert each.listener is not None
        if in_time:
            model.go_on.set()
        each.listener.revoked(["1"])
        # It is the last moment to commit what was on its way.
        assert len(each.committed) == in_time
        model.go_on.set()
        each.source = deque(m for m in each.source if m.partition != "1")

    link.before_poll.extend([None, revoke])
    found = ran(link, model, revoke_s=PATIENCE_SECONDS if in_time else 0.0)
    done = link.offsets()
    assert sorted(n for n in done if n % 2 == 0) == [*range(0, 100, 2)]
    assert [n for n in done if n % 2] == ([*range(1, 16, 2)] if in_time else [])
    assert link.values() == [2 * (100 + n) for n in done]
    assert found.phases(StreamPhase.REBALANCED)[0].rebalances == 1


def test_stream__poisoned_batch_of_a_revoked_partition__is_not_committed() -> None:
    link = MemoryConnection(stream_of([b""] * 100))

    def revoke(each: MemoryConnection) -> None:
        assert each.listener is not None
        each.listener.revoked(["0"])
        each.source.clear()

    link.before_poll.extend([None, revoke])
    found = ran(link, goals=BatchGoals(messages=64), revoke_s=PATIENCE_SECONDS)
    assert link.committed == []
    assert found.error is not None
    assert found.error.code is ErrorCode.TOO_MANY_DEAD_LETTERS


def test_stream__lost_partitions__are_never_committed() -> None:
    link = MemoryConnection(stream_of(plain(100), partitions=2))
    lost_at: list[int] = []

    def lose(each: MemoryConnection) -> None:
        assert each.listener is not None
        each.listener.lost(["1"])
        lost_at.append(len(each.committed))
        each.source = deque(m for m in each.source if m.partition != "1")

    link.before_poll.extend([None, lose])
    ran(link)
    after = [m for batch in link.committed[lost_at[0] :] for m in batch.done]
    assert {m.partition for m in after} == {"0"}
    assert [n for n in link.offsets() if n % 2 == 0] == [*range(0, 100, 2)]
    for batch in link.committed:
        assert len(batch.answers) == len(batch.done), "answers of dropped messages are dropped"


def test_engine__rejected_commit__uncommitted_messages_are_discarded() -> None:
    link = MemoryConnection(stream_of(plain(100)))
    every = [*link.source]

    def refuse(each: MemoryConnection) -> None:
        done = len(each.offsets())
        each.source = deque(every[done:])
        each.taken = done
        raise LostPartitionsError

    link.before_commit.extend([None, refuse, None, refuse])
    found = ran(link)
    assert link.offsets() == [*range(100)]
    assert len(found.phases(StreamPhase.REBALANCED)) == 2


def refusing(values: set[int]) -> Callable[[MemoryConnection], None]:
    """A broker that never takes some answers, as the Kafka of a topic with small messages."""

    def commit(batch: Commit) -> None:
        large = [i for i, each in enumerate(batch.answers) if int(each.content) in values]
        if large:
            raise RejectedAnswersError(
                ErrorCode.PAYLOAD_TOO_LARGE, dict.fromkeys(large, "the answer is too large")
            )
        MemoryConnection.commit(link, batch)

    link: MemoryConnection

    def begin(each: MemoryConnection) -> None:
        nonlocal link
        link = each
        each.commit = commit  # type: ignore[method-assign]

    return begin


def test_stream__answer_that_the_broker_rejects__is_a_dead_letter() -> None:
    values = plain(60)
    values[1] = b"13"
    link = MemoryConnection(stream_of(values), before_poll=deque([refusing({200, 206, 318})]))
    found = ran(link)
    dead = [each for batch in link.committed for each in batch.dead]
    assert [each.value for each in dead] == [b"100", b"13", b"103", b"159"]
    assert dict(dead[0].headers)["mlctl-error"] == b"payload_too_large"
    assert dict(dead[0].headers)["mlctl-reason"] == b"the answer is too large"
    assert link.offsets() == [*range(60)]
    assert link.values() == [2 * (100 + n) for n in range(60) if n not in {0, 1, 3, 59}]
    assert found.report is not None
    assert (found.report.totals.answers, found.report.totals.dead) == (56, 4)
    reasons = [e.batch.reasons for e in found.phases(StreamPhase.COMMITTED) if e.batch]
    assert sum(each.get("payload_too_large", 0) for each in reasons) == 3


def test_engine__rejected_answers__count_towards_the_limit() -> None:
    every = {2 * (100 + n) for n in range(64, 564)}
    link = MemoryConnection(stream_of(plain(564)), before_poll=deque([refusing(every)]))
    found = ran(link)
    assert found.error is not None
    assert found.error.code is ErrorCode.TOO_MANY_DEAD_LETTERS
    assert "too large" in found.error.message
    assert sum(len(batch.dead) for batch in link.committed) < 20
    assert len(link.values()) == 64


def test_engine__slow_model__buffer_is_bounded_and_the_broker_still_polled() -> None:
    link = MemoryConnection(stream_of(plain(2000)))
    model = Held()

    def free(each: MemoryConnection) -> None:
        if each.polls[-3:] == [0, 0, 0]:
            assert each.taken <= 16 + 4 * 16
            model.go_on.set()
        else:
            each.before_poll.append(free)

    link.before_poll.append(free)
    ran(link, model)
    assert link.offsets() == [*range(2000)]


def test_engine__stop__commits_the_batch_in_flight_only() -> None:
    link = MemoryConnection(stream_of(plain(100_000)))
    pump, events = pump_of(link, until_empty=False)

    def stop(_each: MemoryConnection) -> None:
        pump.stop.set()

    link.before_commit.extend([None, None, stop])
    report = pump.run()
    assert not report.complete
    done = link.offsets()
    assert done == [*range(len(done))]
    assert 3 <= len(link.committed) <= 5
    assert report.totals.answers == len(done)
    assert any(event.phase is StreamPhase.STOPPING for event in events)


def test_stream__max_messages__ends_it() -> None:
    link = MemoryConnection(stream_of(plain(1000)))
    found = ran(link, max_messages=70, until_empty=False)
    assert found.report is not None
    assert found.report.complete
    assert link.offsets() == [*range(70)]


class Held(Doubling):
    """A model that answers nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert self.go_on.wait(PATIENCE_SECONDS)
        return super().run(inputs)


class Hasty(threading.Event):
    """A stop that nobody sets, and whose waiting takes no time."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        return False
