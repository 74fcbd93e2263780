from __future__ import annotations

from dataclasses import replace

import pytest

from rollout import machine
from rollout.counts import Counts, Window
from rollout.gates import Action, Gate, Verdict
from rollout.machine import TRANSITIONS, Look, Phase, Progress, Signal
from rollout.model import Outcome, RolloutSpec

SPEC = RolloutSpec(
    steps=(10, 50, 100),
    step_seconds=10,
    min_requests=50,
    max_p99_ms=None,
    warmup_seconds=2,
    bake_seconds=20,
    deadline_seconds=1000,
)
GOOD = Window(Counts(100, 0, 100), Counts(900, 0, 900))
SHIFTED = machine.move(Progress(phase=Phase.WARM), Signal.NEXT_STEP, 100.0)


def looked(progress: Progress, looks: int, now: float, window: Window | None = GOOD) -> Progress:
    for _ in range(looks):
        progress = machine.absorb(progress, Look(window), SPEC, now)
    return progress


def test_every_phase_but_done_has_a_way_out() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.DONE}


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no"):
        machine.move(Progress(phase=Phase.DONE), Signal.SETTLED, 0.0)


def test_the_weight_follows_the_phase() -> None:
    assert machine.candidate_weight(Progress(), SPEC) == 0
    assert machine.candidate_weight(SHIFTED, SPEC) == 10
    baked = machine.move(machine.move(SHIFTED, Signal.NEXT_STEP, 1.0), Signal.LAST_STEP, 2.0)
    assert (baked.phase, machine.candidate_weight(baked, SPEC)) == (Phase.BAKE, 100)
    for outcome, weight in [(Outcome.PROMOTED, 100), (Outcome.ROLLED_BACK, 0)]:
        done = Progress(phase=Phase.DONE, planned=outcome)
        assert machine.candidate_weight(done, SPEC) == weight


def test_a_single_step_goes_straight_to_bake() -> None:
    spec = RolloutSpec(steps=(100,))
    assert machine.next_signal(Progress(phase=Phase.WARM), spec) is Signal.LAST_STEP


def test_no_data_holds() -> None:
    progress = looked(SHIFTED, 5, 200.0, window=None)
    verdict = machine.judge(progress, Look(None), SPEC, 200.0)
    assert (verdict.action, verdict.gate) == (Action.HOLD, Gate.DATA)


def test_requests_that_nobody_answered_are_no_data() -> None:
    hanging = Window(Counts(abandoned=100), Counts(900, 0, 900))
    progress = looked(SHIFTED, 3, 200.0, hanging)
    verdict = machine.judge(progress, Look(hanging), SPEC, 200.0)
    assert (verdict.action, verdict.gate) == (Action.HOLD, Gate.DATA)


def test_too_little_time_holds() -> None:
    progress = looked(SHIFTED, 5, 105.0)
    verdict = machine.judge(progress, Look(GOOD), SPEC, 105.0)
    assert (verdict.action, verdict.gate) == (Action.HOLD, Gate.BAKE_TIME)
    assert (verdict.value, verdict.limit) == (5.0, 10)


def test_time_and_requests_advance_an_early_step_without_proof() -> None:
    few = Window(Counts(20, 0, 20), Counts(180, 0, 180))
    progress = looked(SHIFTED, 3, 111.0, few)
    assert machine.judge(progress, Look(few), SPEC, 111.0).action is Action.ADVANCE


def test_the_final_step_needs_proof() -> None:
    few = Window(Counts(20, 0, 20), Counts(20, 0, 20))
    half = replace(SHIFTED, step=1)
    held = machine.judge(looked(half, 3, 111.0, few), Look(few), SPEC, 111.0)
    assert (held.action, held.gate) == (Action.HOLD, Gate.PROOF)
    proved = machine.judge(looked(half, 10, 111.0), Look(GOOD), SPEC, 111.0)
    assert (proved.action, proved.gate) == (Action.ADVANCE, Gate.PROOF)
    assert machine.obey(half, proved, SPEC, 112.0).phase is Phase.BAKE


def test_the_bake_ends_in_finalize() -> None:
    baking = replace(SHIFTED, phase=Phase.BAKE, step=2)
    progress = looked(baking, 10, 121.0)
    verdict = machine.judge(progress, Look(GOOD), SPEC, 121.0)
    done = machine.obey(progress, verdict, SPEC, 121.0)
    assert (done.phase, done.planned, done.ruling) == (Phase.FINALIZE, Outcome.PROMOTED, verdict)


def test_the_deadline_is_inconclusive_and_never_promotes() -> None:
    verdict = machine.judge(SHIFTED, Look(None), SPEC, 1000.0)
    assert (verdict.action, verdict.gate) == (Action.INCONCLUSIVE, Gate.DEADLINE)
    ended = machine.obey(SHIFTED, verdict, SPEC, 1000.0)
    assert (ended.phase, ended.planned) == (Phase.ROLLBACK, Outcome.INCONCLUSIVE)
    assert machine.candidate_weight(ended, SPEC) == 0


def test_a_dead_candidate_is_rolled_back_at_once() -> None:
    verdict = machine.judge(SHIFTED, Look(None, alive=False), SPEC, 101.0)
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.HEALTH)


def test_three_unhealthy_looks_in_a_row_roll_back() -> None:
    sick = Look(GOOD, healthy=False)
    progress = machine.absorb(machine.absorb(SHIFTED, sick, SPEC, 101.0), sick, SPEC, 101.0)
    assert machine.judge(progress, sick, SPEC, 101.0).action is Action.HOLD
    well = machine.absorb(progress, Look(GOOD), SPEC, 101.0)
    assert well.unhealthy_looks == 0
    third = machine.absorb(progress, sick, SPEC, 101.0)
    assert machine.judge(third, sick, SPEC, 101.0).gate is Gate.HEALTH


def test_the_first_requests_are_not_judged() -> None:
    bad = Window(Counts(100, 100, 100), Counts(900, 0, 900))
    assert looked(SHIFTED, 5, 101.0, bad).evidence == SHIFTED.evidence
    assert looked(SHIFTED, 5, 102.0, bad).evidence.ticks == 5


def test_the_first_look_beyond_a_limit_is_remembered() -> None:
    bad = Window(Counts(100, 50, 100), Counts(900, 0, 900))
    progress = looked(looked(looked(SHIFTED, 1, 103.0), 1, 104.0, bad), 1, 105.0, bad)
    assert progress.first_bad == 104.0


def test_hold_changes_nothing() -> None:
    hold = Verdict(Action.HOLD, Gate.DATA, "no data")
    assert machine.obey(SHIFTED, hold, SPEC, 5.0) is SHIFTED
