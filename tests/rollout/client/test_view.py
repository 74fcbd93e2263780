from __future__ import annotations

from dataclasses import replace

import pytest

from rollout.client.view import Flow, RolloutView, Snapshot, screen
from rollout.domain.counts import Totals
from rollout.domain.spec import Outcome, Slot
from rollout.domain.state_machine import RolloutPhase
from tests.support.played import Played


def snapshot(played: Played) -> Snapshot:
    """What a view would find now."""
    rollout = played.journal.rollout(played.controller.rollout.id)
    ticks = [event for event in played.journal.events("shop") if event.kind == "tick"]
    return Snapshot(
        now=played.clock.wall(),
        deployment=played.journal.deployment("shop"),
        weights=dict(played.data_plane.weights),
        healthy=dict(played.data_plane.healthy),
        replicas={Slot.BLUE: 2, Slot.GREEN: 1},
        rollout=rollout,
        tick=ticks[-1] if ticks else None,
    )


def rollout_of(seen: Snapshot) -> RolloutView:
    shown = screen(seen).rollout
    assert shown is not None
    return shown


def test_view__step_in_progress__shows_what_it_waits_for(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2)
    state = screen(snapshot(played))
    assert (state.name, state.address, state.answers) == ("shop", "http://127.0.0.1:8000", True)
    assert [(each.part, each.weight, each.replicas) for each in state.slots] == [
        ("live", 90, 2),
        ("candidate", 10, 1),
    ]
    shown = rollout_of(snapshot(played))
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
    before = {gate.gate: gate.filled for gate in rollout_of(snapshot(played)).harm}
    played.until(RolloutPhase.DONE, errors=10)
    shown = rollout_of(snapshot(played))
    after = {gate.gate: gate.filled for gate in shown.harm}
    assert before["errors_vs_limit"] < after["errors_vs_limit"] == 1.0
    assert shown.outcome is Outcome.ROLLED_BACK
    assert "failed" in shown.verdict


def test_view__latency_edges__give_the_slots_percentiles(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    totals = Totals(requests=200, errors=4, timed=200, within=(150, 200))
    flow = Flow(totals, seconds=10.0, edges=(5.0, 9.0))
    (blue, green) = screen(replace(snapshot(played), flows={Slot.BLUE: flow})).slots
    assert (blue.rate, blue.p50, blue.p99, blue.error_share) == (20.0, 5.0, 9.0, 0.02)
    assert (green.rate, green.p50, green.p99, green.error_share) == (None, None, None, None)


def test_view__paused__clocks_stop(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    seen = snapshot(played)
    assert seen.rollout is not None
    progress = replace(
        seen.rollout.progress,
        phase=RolloutPhase.PAUSED,
        interrupted=RolloutPhase.SHIFT,
        paused=seen.now,
    )
    paused = replace(seen, now=seen.now + 50, rollout=replace(seen.rollout, progress=progress))
    shown = rollout_of(paused)
    assert (shown.step.phase, shown.step.seconds, shown.deadline_left) == (
        RolloutPhase.PAUSED,
        rollout_of(seen).step.seconds,
        None,
    )


def test_view__after_a_promotion__names_the_former_bento(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    state = screen(snapshot(played))
    assert [(each.part, each.bento) for each in state.slots] == [
        ("live", "tiny:bb"),
        ("former", "tiny:aa"),
    ]


def test_view__compared_answers__show_their_agreement(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick()
    seen = snapshot(played)
    assert seen.tick is not None
    tick = replace(seen.tick, body={**seen.tick.body, "compared": [1.0, 50]})
    shown = rollout_of(replace(seen, tick=tick))
    assert (shown.agreement, shown.compared) == (0.98, 50)


def test_view__no_rollout_and_no_answer__shows_the_live_slot(played: Played) -> None:
    seen = snapshot(played)
    state = screen(replace(seen, rollout=None, weights={}, healthy={}))
    assert state.rollout is None
    assert not state.answers
    (live,) = state.slots
    assert (live.weight, live.healthy) == (None, None)
