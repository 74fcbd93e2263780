"""What must hold for every series of counters."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import GateEvidence, fold
from mlctl.rollout.domain.machine.state_machine import (
    RolloutPhase,
    RolloutProgress,
    TickObservation,
)
from mlctl.rollout.domain.spec import Outcome, RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.statistics.verdict import Action
from mlctl.rollout.domain.traffic.counts import Counts, Totals, Window

SPEC = RolloutSpec(
    steps=(10, 50, 100),
    step_seconds=3,
    min_requests=20,
    max_p99_ms=50.0,
    max_error_rate=0.05,
    warmup_seconds=0,
    bake_seconds=3,
    deadline_seconds=100,
)


@st.composite
def counts(draw: st.DrawFn, harmless: bool = False) -> Counts:
    n = draw(st.integers(0, 500))
    timed = draw(st.integers(0, n))
    if harmless:
        return Counts(n, 0, timed, 0, 0)
    parts = (draw(st.integers(0, limit)) for limit in (n, timed, timed))
    errors, slow, tail = parts
    return Counts(n, errors, timed, slow, tail)


windows = st.builds(Window, counts(), counts())
harmless = st.builds(Window, counts(harmless=True), counts())
looks = st.builds(
    TickObservation, st.none() | windows, healthy=st.booleans(), alive=st.just(value=True)
)


@given(st.lists(windows, max_size=30))
def test_evidence__any_ticks__is_finite_and_deterministic(ticks: list[Window]) -> None:
    first = second = GateEvidence()
    for window in ticks:
        first = fold(first, window, SPEC)
        second = fold(second, window, SPEC)
    assert first == second
    assert all(math.isfinite(value) for value in first.log_values(SPEC).values())


@given(st.lists(harmless, max_size=30))
def test_harm__candidate_without_a_fault__is_never_found(ticks: list[Window]) -> None:
    evidence = GateEvidence()
    for window in ticks:
        evidence = fold(evidence, window, SPEC)
        assert gates.harm(evidence, SPEC) is None


@given(counts(), counts())
def test_higher__side_without_hits__is_never_worse(ours: Counts, theirs: Counts) -> None:
    if ours.requests and theirs.requests:
        logs = e_values.higher((0, ours.requests), (theirs.errors, theirs.requests))
        assert all(log <= 0 for log in logs)


@given(st.lists(looks, max_size=60))
def test_state_machine__any_observations__keeps_its_invariants(
    series: list[TickObservation],
) -> None:
    """Steps rise by one, no step is taken without its requests, and a rollback is final."""
    progress = machine.move(RolloutProgress(phase=RolloutPhase.WARM), machine.Signal.NEXT_STEP, 0.0)
    weights = [machine.candidate_weight(progress, SPEC)]
    for second, observation in enumerate(series, start=1):
        if progress.phase not in machine.EXPOSED:
            break
        now = float(second)
        progress = machine.absorb(progress, observation, SPEC, now)
        verdict = machine.judge(progress, observation, SPEC, now)
        if verdict.action is Action.ADVANCE:
            assert progress.step_requests >= SPEC.min_requests
            assert observation.window is not None or progress.step_ticks >= gates.MIN_TICKS
        if progress.phase is RolloutPhase.BAKE and verdict.action is Action.ADVANCE:
            assert gates.unproved(progress.evidence, SPEC) is None
        progress = machine.apply_verdict(progress, verdict, SPEC, now)
        weights.append(machine.candidate_weight(progress, SPEC))
    allowed = {0: {0}, 10: {0, 10, 50}, 50: {0, 50, 100}, 100: {0, 100}}
    assert all(after in allowed[before] for before, after in pairwise(weights))
    if progress.phase is RolloutPhase.ROLLBACK:
        assert weights[-1] == 0
        assert progress.planned in (Outcome.ROLLED_BACK, Outcome.INCONCLUSIVE)
        assert progress.ruling is not None


totals = st.builds(
    lambda parts: Totals(parts[2] + parts[0], parts[0], parts[2], (parts[1], parts[2])),
    st.tuples(*[st.integers(0, 1000)] * 3).map(sorted),
)


@given(totals, totals)
def test_minus__after_plus__is_the_tick(before: Totals, tick: Totals) -> None:
    assert before.plus(tick).minus(before) == tick


@given(totals, st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_slower_than__higher_limit__counts_no_more_requests(
    part: Totals, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    assert part.slower_than(low, (10.0, 50.0)) >= part.slower_than(high, (10.0, 50.0)) >= 0
