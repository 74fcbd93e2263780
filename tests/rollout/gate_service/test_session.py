from __future__ import annotations

import json
from dataclasses import replace

from mlctl.rollout.domain.machine.state_machine import TickObservation
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Gate, HoldReason
from mlctl.rollout.domain.traffic.counts import Counts, Window
from mlctl.rollout.gate_service.session import (
    GateSession,
    Result,
    absorb,
    judge,
    result_of,
)
from mlctl.rollout.journal.records import dumps, value_from

SPEC = RolloutSpec(min_requests=20, max_p99_ms=200.0, max_error_rate=0.05)
GOOD = Window(Counts(requests=100, timed=100), Counts(requests=100, timed=100))
BAD = Window(Counts(requests=100, errors=40, timed=60), Counts(requests=100, timed=100))


def after(*windows: Window, weight: int | None = 50, healthy: bool = True) -> GateSession:
    session = GateSession()
    for window in windows:
        session = absorb(session, TickObservation(window, healthy), SPEC, weight)
    return session


def result(session: GateSession, *, final: bool = False) -> Result:
    return result_of(judge(session, SPEC, final=final))


def test_session__no_data__is_inconclusive() -> None:
    assert result(GateSession()) is Result.INCONCLUSIVE
    empty = Window(Counts(), Counts(requests=100, timed=100))
    assert result(after(*[empty] * 50)) is Result.INCONCLUSIVE


def test_session__step_without_proof__succeeds_unless_final() -> None:
    session = after(*[GOOD] * 3)
    assert result(session) is Result.SUCCESS
    verdict = judge(session, SPEC, final=True)
    assert (result_of(verdict), verdict.gate) == (Result.INCONCLUSIVE, HoldReason.PROOF)
    assert result(after(*[GOOD] * 30), final=True) is Result.SUCCESS


def test_session__small_share__proves_no_latency() -> None:
    assert result(after(*[GOOD] * 60, weight=5), final=True) is Result.INCONCLUSIVE
    small = Window(Counts(requests=10, timed=10), Counts(requests=190, timed=190))
    assert result(after(*[small] * 200, weight=None), final=True) is Result.INCONCLUSIVE
    assert result(after(*[GOOD] * 60, weight=None), final=True) is Result.SUCCESS


def test_session__harm__fails_for_good() -> None:
    session = after(*[BAD] * 8)
    verdict = judge(session, SPEC, final=False)
    assert (result_of(verdict), verdict.gate) == (Result.FAILURE, Gate.ERRORS_VS_LIMIT)
    failed = replace(session, failed=verdict)
    for _ in range(100):
        failed = absorb(failed, TickObservation(GOOD), SPEC, 50)
    assert judge(failed, SPEC, final=True) == verdict


def test_session__new_weight__needs_its_own_data() -> None:
    session = absorb(after(*[GOOD] * 5, weight=5), TickObservation(GOOD), SPEC, 25)
    assert (session.step_requests, session.step_ticks) == (100, 1)
    assert result(session) is Result.INCONCLUSIVE
    assert session.evidence.ticks == 6


def test_session__candidate_fails_only_at_a_higher_weight__its_past_does_not_excuse_it() -> None:
    session = after(*[GOOD] * 200, weight=5)
    failing = Window(Counts(requests=100, errors=8, timed=92), Counts(requests=100, timed=100))
    for _ in range(3):
        session = absorb(session, TickObservation(failing), SPEC, 50)
    verdict = judge(session, SPEC, final=False)
    assert (verdict.gate, verdict.n) == (Gate.ERRORS_VS_LIMIT, 300)
    assert result_of(verdict) is Result.INCONCLUSIVE


def test_session__candidate_silent_for_three_ticks__fails() -> None:
    session = GateSession()
    for expected in (Result.INCONCLUSIVE, Result.INCONCLUSIVE, Result.FAILURE):
        session = absorb(session, TickObservation(None, healthy=False), SPEC, 50)
        assert result(session) is expected
    assert result(absorb(session, TickObservation(GOOD), SPEC, 50)) is Result.INCONCLUSIVE


def test_session__written_as_json__is_read_back() -> None:
    session = after(*[GOOD, BAD] * 7)
    failed = replace(session, failed=judge(session, SPEC, final=False))
    assert value_from(GateSession, json.loads(dumps(failed))) == failed
