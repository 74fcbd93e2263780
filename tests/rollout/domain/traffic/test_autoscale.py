"""The autoscaling policy under a clock that the test drives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.rollout.domain.traffic.autoscale import (
    Bounds,
    ReplicaLoad,
    ScalingObservation,
    State,
    decide,
)

BOUNDS = Bounds(min_replicas=1, max_replicas=8, idle_seconds=30.0)
ZERO = Bounds(min_replicas=0, max_replicas=8, idle_seconds=30.0)
IDLE, CALM = ReplicaLoad(0.0, 0.0), ReplicaLoad(0.0, 0.55)


@dataclass
class Story:
    """A deployment in time. What is added serves after `start_seconds`."""

    bounds: Bounds = BOUNDS
    replicas: int = 1
    start_seconds: float = 0.0
    state: State = field(default_factory=State)
    now: float = 0.0
    requests: int = 0
    ready: list[float] = field(default_factory=lambda: [0.0])
    changes: list[tuple[float, int]] = field(default_factory=list)

    def run(self, seconds: float, load: Callable[[int], ReplicaLoad], rate: int = 1) -> None:
        """TickObservation once a second; `load` is a replica's at so many that serve."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.requests += rate
            serving = sum(at <= self.now for at in self.ready)
            loads = (load(serving),) * serving
            seen = ScalingObservation(self.now, self.replicas, loads, self.requests, active=0)
            self.state, wanted = decide(self.state, seen, self.bounds)
            if wanted != self.replicas:
                self.changes.append((self.now, wanted))
                self.replicas = wanted
                added = wanted - len(self.ready)
                self.ready += [self.now + self.start_seconds] * max(0, added)
                del self.ready[wanted:]


def shared(cores: float) -> Callable[[int], ReplicaLoad]:
    """A steady amount of work, shared by those that serve; the queue grows when it is too much."""
    return lambda serving: ReplicaLoad(40.0 if cores > serving else 0.0, min(1.0, cores / serving))


def test_autoscale__burst__adds_replicas_within_seconds() -> None:
    story = Story()
    story.run(10, shared(3.0))
    (first, _), *_ = story.changes
    assert first <= 5.0
    story.run(20, shared(3.0))
    assert 4 <= story.replicas <= 6


def test_autoscale__short_spike__changes_nothing() -> None:
    story = Story()
    story.run(2, lambda _: ReplicaLoad(100.0, 1.0))
    story.run(30, lambda _: CALM)
    assert story.changes == []


def test_autoscale__replica_is_starting__adds_no_more() -> None:
    story = Story(start_seconds=20.0)
    story.run(20, shared(2.5))
    assert [replicas for _, replicas in story.changes] == [2]


def test_autoscale__idle__removes_one_replica_at_a_time() -> None:
    story = Story(replicas=4, ready=[0.0] * 4)
    story.run(200, lambda _: IDLE)
    assert [replicas for _, replicas in story.changes] == [3, 2, 1]
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(story.changes)]
    assert min(gaps) >= 60.0


def test_autoscale__silent_replica__changes_nothing() -> None:
    story = Story(replicas=2, ready=[0.0, 1e9])
    story.run(200, lambda _: ReplicaLoad(100.0, 1.0))
    assert story.changes == []


def test_scale_to_zero__no_request_for_its_time__sleeps() -> None:
    story = Story(bounds=ZERO)
    story.run(100, lambda _: IDLE, rate=1)
    assert story.replicas == 1
    story.run(29, lambda _: IDLE, rate=0)
    assert story.replicas == 1
    story.run(2, lambda _: IDLE, rate=0)
    assert story.replicas == 0
    story.run(1000, lambda _: IDLE, rate=0)
    assert story.replicas == 0


def test_scale_to_zero__request_in_flight__stays_awake() -> None:
    state = State()
    for second in range(100):
        seen = ScalingObservation(float(second), 1, (IDLE,), requests=7, active=1)
        state, wanted = decide(state, seen, ZERO)
        assert wanted == 1


def test_autoscale__idle_without_scale_to_zero__keeps_one() -> None:
    story = Story()
    story.run(1000, lambda _: IDLE, rate=0)
    assert story.replicas == 1


@pytest.mark.parametrize(("bounds", "wanted"), [(Bounds(3, 5, 1.0), 3), (Bounds(1, 1, 1.0), 1)])
def test_autoscale__new_bounds__hold_at_once(bounds: Bounds, wanted: int) -> None:
    seen = ScalingObservation(0.0, 2, (CALM, CALM), 1, 0)
    assert decide(State(), seen, bounds)[1] == wanted


@given(cores=st.floats(0.0, 12.0), start=st.integers(1, 8), delay=st.floats(0.0, 30.0))
def test_autoscale__steady_load__settles_on_one_number(
    cores: float, start: int, delay: float
) -> None:
    """Whatever the load and the start, it ends at one number and stays there."""
    story = Story(replicas=start, ready=[0.0] * start, start_seconds=delay)
    story.run(900, shared(cores))
    changes = len(story.changes)
    story.run(300, shared(cores))
    assert len(story.changes) == changes
    assert BOUNDS.min_replicas <= story.replicas <= BOUNDS.max_replicas
    if cores <= 0.6 * BOUNDS.max_replicas:
        assert cores / story.replicas <= 0.85


TICKS = st.lists(
    st.tuples(
        st.floats(0.0, 100.0),
        st.lists(st.builds(ReplicaLoad, st.floats(0, 1e4), st.floats(0, 1)), max_size=8),
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(
    ticks=TICKS,
    min_replicas=st.integers(0, 4),
    more=st.integers(0, 4),
    start=st.integers(0, 10),
)
def test_autoscale__any_observations__keep_the_bounds(
    ticks: list[tuple[float, list[ReplicaLoad], int, int]], min_replicas: int, more: int, start: int
) -> None:
    bounds = Bounds(min_replicas, max(1, min_replicas + more), 20.0)
    state, replicas, now, requests = State(), start, 0.0, 0
    for seconds, loads, moved, active in ticks:
        now, requests = now + seconds, requests + moved
        before = replicas
        state, replicas = decide(
            state, ScalingObservation(now, before, tuple(loads), requests, active), bounds
        )
        assert bounds.min_replicas <= replicas <= bounds.max_replicas
        if bounds.min_replicas <= before <= bounds.max_replicas:
            assert replicas <= max(2 * before, before + 1)
        if before == 0:
            assert replicas == bounds.min_replicas
        if replicas == 0 < before:
            assert active == 0


def test_scale_up__queue_below_the_target__keeps_the_replicas() -> None:
    story = Story(bounds=Bounds(min_replicas=1, max_replicas=8, idle_seconds=30.0, queue_rows=50.0))
    story.run(60, lambda _serving: ReplicaLoad(40.0, 0.55))
    assert story.replicas == 1
    story.run(60, lambda serving: ReplicaLoad(120.0 / serving, 0.55))
    assert story.replicas == 3


def test_scale_down__cooldown__is_the_time_of_low_load() -> None:
    story = Story(bounds=Bounds(1, 8, 30.0, cooldown_seconds=300.0), replicas=2, ready=[0.0, 0.0])
    story.run(299, lambda _serving: IDLE)
    assert story.replicas == 2
    story.run(5, lambda _serving: IDLE)
    assert story.replicas == 1
