from __future__ import annotations

from dataclasses import replace

import pytest

from rollout.client.view import RolloutView, rollout_view
from rollout.domain.spec import Outcome
from rollout.domain.state_machine import RolloutPhase
from rollout.journal.records import JournalEvent
from tests.support.played import Played


def newest_tick(played: Played) -> JournalEvent | None:
    ticks = [event for event in played.journal.events("shop") if event.kind == "tick"]
    return ticks[-1] if ticks else None


def view_of(played: Played) -> RolloutView:
    """What a page shows now."""
    rollout = played.journal.rollout(played.controller.rollout.id)
    return rollout_view(played.clock.wall(), rollout, newest_tick(played))


def test_view__step_in_progress__shows_what_it_waits_for(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2)
    shown = view_of(played)
    step = shown.step
    assert (step.phase, step.number, step.steps) == (RolloutPhase.SHIFT, 1, 3)
    assert (step.seconds, step.least_seconds, step.needed) == (2.0, 3.0, 20)
    ready = 1002  # the candidate's, when its deadline begins
    assert shown.deadline_left == pytest.approx(200 - (played.clock.wall() - ready))
    assert shown.threshold == pytest.approx(20.0)
    assert {gate.gate for gate in shown.proof} == {"errors_vs_limit", "latency_vs_limit"}
    assert all(0 <= gate.filled <= 1 for gate in (*shown.harm, *shown.proof))
    assert shown.verdict
    assert shown.agreement is None


def test_view__bad_candidate__evidence_of_harm_fills_up(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2, errors=1)
    before = {gate.gate: gate.filled for gate in view_of(played).harm}
    played.until(RolloutPhase.DONE, errors=10)
    shown = view_of(played)
    after = {gate.gate: gate.filled for gate in shown.harm}
    assert before["errors_vs_limit"] < after["errors_vs_limit"] == 1.0
    assert shown.outcome is Outcome.ROLLED_BACK
    assert "failed" in shown.verdict


def test_view__paused__clocks_stop(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    now, before = played.clock.wall(), view_of(played)
    rollout = played.journal.rollout(played.controller.rollout.id)
    progress = replace(
        rollout.progress, phase=RolloutPhase.PAUSED, interrupted=RolloutPhase.SHIFT, paused=now
    )
    shown = rollout_view(now + 50, replace(rollout, progress=progress), newest_tick(played))
    assert (shown.step.phase, shown.step.seconds, shown.deadline_left) == (
        RolloutPhase.PAUSED,
        before.step.seconds,
        None,
    )


def test_view__compared_answers__show_their_agreement(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick()
    tick = newest_tick(played)
    assert tick is not None
    tick = replace(tick, body={**tick.body, "compared": [1.0, 50]})
    rollout = played.journal.rollout(played.controller.rollout.id)
    shown = rollout_view(played.clock.wall(), rollout, tick)
    assert (shown.agreement, shown.compared) == (0.98, 50)
