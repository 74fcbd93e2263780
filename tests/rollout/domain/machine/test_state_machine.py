from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import begin, next_step
from mlctl.rollout.domain.machine.state_machine import (
    TRANSITIONS,
    RolloutPhase,
    RolloutProgress,
    Signal,
    TickObservation,
)
from mlctl.rollout.domain.operator_commands import OperatorCommand, OperatorRequest
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.shadow.labels import LabelledTrials
from mlctl.rollout.domain.spec import OnInconclusive, Outcome, RolloutSpec
from mlctl.rollout.domain.statistics.bursts import NO_TRIALS
from mlctl.rollout.domain.statistics.verdict import Action, Gate, HoldReason, Verdict
from mlctl.rollout.domain.traffic.counts import Counts, Window

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
SHIFTED = machine.move(RolloutProgress(phase=RolloutPhase.WARM), Signal.NEXT_STEP, 100.0)


def looked(
    progress: RolloutProgress, looks: int, now: float, window: Window | None = GOOD
) -> RolloutProgress:
    for _ in range(looks):
        progress = machine.absorb(progress, TickObservation(window), SPEC, now)
    return progress


def test_transitions__each_phase_but_done__has_a_next_one() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(RolloutPhase) - {RolloutPhase.DONE}


def test_move__not_in_the_table__is_rejected() -> None:
    with pytest.raises(ValueError, match="takes no"):
        machine.move(RolloutProgress(phase=RolloutPhase.DONE), Signal.SETTLED, 0.0)


def test_candidate_weight__each_phase__has_its_own() -> None:
    assert machine.candidate_weight(RolloutProgress(), SPEC) == 0
    assert machine.candidate_weight(SHIFTED, SPEC) == 10
    baked = machine.move(machine.move(SHIFTED, Signal.NEXT_STEP, 1.0), Signal.LAST_STEP, 2.0)
    assert (baked.phase, machine.candidate_weight(baked, SPEC)) == (RolloutPhase.BAKE, 100)
    for outcome, weight in [(Outcome.PROMOTED, 100), (Outcome.ROLLED_BACK, 0)]:
        done = RolloutProgress(phase=RolloutPhase.DONE, planned=outcome)
        assert machine.candidate_weight(done, SPEC) == weight


def test_next_signal__single_step__goes_to_bake() -> None:
    spec = RolloutSpec(steps=(100,))
    assert machine.next_signal(RolloutProgress(phase=RolloutPhase.WARM), spec) is Signal.LAST_STEP


def test_judge__no_data__holds() -> None:
    progress = looked(SHIFTED, 5, 200.0, window=None)
    verdict = machine.judge(progress, TickObservation(None), SPEC, 200.0)
    assert (verdict.action, verdict.gate) == (Action.HOLD, HoldReason.DATA)


def test_hanging_candidate__few_requests_given_up__is_no_data() -> None:
    hanging = Window(Counts(abandoned=1), Counts(900, 0, 900))
    progress = looked(SHIFTED, 3, 200.0, hanging)
    verdict = machine.judge(progress, TickObservation(hanging), SPEC, 200.0)
    assert (verdict.action, verdict.gate) == (Action.HOLD, HoldReason.DATA)


def test_hanging_candidate__every_request_given_up__is_rolled_back() -> None:
    hanging = Window(Counts(abandoned=100), Counts(900, 0, 900))
    progress = looked(SHIFTED, 3, 200.0, hanging)
    verdict = machine.judge(progress, TickObservation(hanging), SPEC, 200.0)
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.ERRORS_VS_LIVE)


def test_judge__too_little_time__holds() -> None:
    progress = looked(SHIFTED, 5, 105.0)
    verdict = machine.judge(progress, TickObservation(GOOD), SPEC, 105.0)
    assert (verdict.action, verdict.gate) == (Action.HOLD, HoldReason.STEP_TIME)
    assert (verdict.value, verdict.limit) == (5.0, 10)


def test_judge__early_step_has_time_and_requests__advances_without_proof() -> None:
    few = Window(Counts(20, 0, 20), Counts(180, 0, 180))
    progress = looked(SHIFTED, 3, 111.0, few)
    assert machine.judge(progress, TickObservation(few), SPEC, 111.0).action is Action.ADVANCE


def test_judge__final_step__needs_proof() -> None:
    few = Window(Counts(20, 0, 20), Counts(20, 0, 20))
    half = replace(SHIFTED, step=1)
    held = machine.judge(looked(half, 3, 111.0, few), TickObservation(few), SPEC, 111.0)
    assert (held.action, held.gate) == (Action.HOLD, HoldReason.PROOF)
    proved = machine.judge(looked(half, 10, 111.0), TickObservation(GOOD), SPEC, 111.0)
    assert (proved.action, proved.gate) == (Action.ADVANCE, HoldReason.PROOF)
    assert machine.apply_verdict(half, proved, SPEC, 112.0).phase is RolloutPhase.BAKE


def test_apply_verdict__end_of_the_bake__finalizes() -> None:
    baking = replace(SHIFTED, phase=RolloutPhase.BAKE, step=2)
    progress = looked(baking, 10, 121.0)
    verdict = machine.judge(progress, TickObservation(GOOD), SPEC, 121.0)
    done = machine.apply_verdict(progress, verdict, SPEC, 121.0)
    assert (done.phase, done.planned, done.ruling) == (
        RolloutPhase.FINALIZE,
        Outcome.PROMOTED,
        verdict,
    )


def test_judge__deadline__is_inconclusive_and_never_promotes() -> None:
    verdict = machine.judge(SHIFTED, TickObservation(None), SPEC, 1000.0)
    assert (verdict.action, verdict.gate) == (Action.INCONCLUSIVE, HoldReason.DEADLINE)
    ended = machine.apply_verdict(SHIFTED, verdict, SPEC, 1000.0)
    assert (ended.phase, ended.planned) == (RolloutPhase.ROLLBACK, Outcome.INCONCLUSIVE)
    assert machine.candidate_weight(ended, SPEC) == 0


def test_judge__dead_candidate__is_rolled_back_at_once() -> None:
    verdict = machine.judge(SHIFTED, TickObservation(None, alive=False), SPEC, 101.0)
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.HEALTH)


def test_judge__three_unhealthy_ticks_in_a_row__rolls_back() -> None:
    sick = TickObservation(GOOD, healthy=False)
    progress = machine.absorb(machine.absorb(SHIFTED, sick, SPEC, 101.0), sick, SPEC, 101.0)
    assert machine.judge(progress, sick, SPEC, 101.0).action is Action.HOLD
    well = machine.absorb(progress, TickObservation(GOOD), SPEC, 101.0)
    assert well.unhealthy_ticks == 0
    third = machine.absorb(progress, sick, SPEC, 101.0)
    assert machine.judge(third, sick, SPEC, 101.0).gate is Gate.HEALTH


def test_absorb__first_requests__are_not_judged() -> None:
    bad = Window(Counts(100, 100, 100), Counts(900, 0, 900))
    assert looked(SHIFTED, 5, 101.0, bad).evidence == SHIFTED.evidence
    assert looked(SHIFTED, 5, 102.0, bad).evidence.ticks == 5


def test_first_bad__tick_beyond_a_limit__is_noted_once() -> None:
    bad = Window(Counts(100, 50, 100), Counts(900, 0, 900))
    progress = looked(looked(looked(SHIFTED, 1, 103.0), 1, 104.0, bad), 1, 105.0, bad)
    assert progress.first_bad == 104.0


def test_first_bad__only_callers_errors_differ__is_noted() -> None:
    worse = Window(Counts(100, 0, 100, client_errors=13), Counts(900, 0, 900))
    progress = machine.absorb(SHIFTED, TickObservation(worse), SPEC, 104.0)
    assert progress.first_bad == 104.0


def test_first_bad__median_beyond_its_limit__is_noted() -> None:
    spec = replace(SPEC, max_p50_ms=10.0)
    slow = Window(Counts(100, 0, 100, late=60), Counts(900, 0, 900))
    assert machine.absorb(SHIFTED, TickObservation(slow), spec, 104.0).first_bad == 104.0


def test_absorb__labels__replace_what_was_labelled_before() -> None:
    labelled = LabelledTrials(candidate=NO_TRIALS.add(3, 10, 1.0, burst=1.0, limit=0.5))
    observed = TickObservation(None, labelled=labelled)
    progress = machine.absorb(SHIFTED, observed, SPEC, 104.0)
    assert machine.absorb(progress, observed, SPEC, 105.0).evidence == progress.evidence
    assert progress.evidence.of(Gate.ACCURACY_VS_LIMIT).ours.n == 10


def test_no_traffic__some_time_without_a_request__is_said_until_one_arrives() -> None:
    progress = looked(SHIFTED, 3, 104.0, Window(seconds=2.0))
    assert progress.idle_since == 102.0
    assert machine.no_traffic(progress, 102.0 + machine.IDLE_SECONDS - 0.1) is None
    said = machine.no_traffic(progress, 102.0 + machine.IDLE_SECONDS)
    assert said == f"no requests in the last {machine.IDLE_SECONDS:.0f} s; the gates need traffic"
    assert looked(progress, 1, 110.0, Window(seconds=2.0)).idle_since == 102.0
    for some in (GOOD, replace(GOOD, candidate=Counts()), replace(GOOD, live=Counts())):
        assert looked(progress, 1, 200.0, some).idle_since is None


def test_judge__no_traffic__says_so_instead_of_what_is_missing() -> None:
    progress = looked(SHIFTED, 1, 104.0, Window(seconds=2.0))
    held = machine.judge(progress, TickObservation(None), SPEC, 112.0)
    assert held.why == "no requests in the last 10 s; the gates need traffic"
    early = machine.judge(progress, TickObservation(None), SPEC, 106.0)
    assert early.why == "0 answers in 0 ticks at this step, 50 are needed"


def test_apply_verdict__hold__changes_nothing() -> None:
    hold = Verdict(Action.HOLD, HoldReason.DATA, "no data")
    assert machine.apply_verdict(SHIFTED, hold, SPEC, 5.0) is SHIFTED


SHADOWED = replace(SPEC, shadow_percent=20, shadow_seconds=5, shadow_requests=30)


def asked(command: OperatorCommand, seq: int = 7) -> OperatorRequest:
    return OperatorRequest(seq, command, "by hand")


def applied(
    progress: RolloutProgress, command: OperatorCommand, now: float, spec: RolloutSpec = SPEC
) -> RolloutProgress:
    after = machine.apply_command(progress, asked(command), spec, now)
    assert after is not None
    return after


def test_warmed__spec_with_a_shadow__copies_before_any_weight() -> None:
    warm = RolloutProgress(phase=RolloutPhase.WARM)
    shadow = machine.warmed(warm, SHADOWED, 100.0)
    assert shadow.phase is RolloutPhase.SHADOW
    assert machine.candidate_weight(shadow, SHADOWED) == 0
    assert machine.mirrored_share(shadow, SHADOWED) == 20
    assert shadow.exposed is None
    first = machine.move(shadow, machine.next_signal(shadow, SHADOWED), 110.0)
    assert (first.phase, first.step, first.exposed) == (RolloutPhase.SHIFT, 0, 110.0)
    assert machine.mirrored_share(first, SHADOWED) == 0
    assert machine.mirrored_share(first, replace(SHADOWED, mirror_percent=3)) == 3


def test_warmed__no_share_to_copy__has_no_shadow() -> None:
    assert (
        machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), SPEC, 1.0).phase
        is RolloutPhase.SHIFT
    )


def test_judge__shadow_with_traffic_only__has_no_data() -> None:
    progress = machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), SHADOWED, 100.0)
    for _ in range(5):
        progress = machine.absorb(progress, TickObservation(GOOD), SHADOWED, 200.0)
    held = machine.judge(progress, TickObservation(GOOD), SHADOWED, 200.0)
    assert (held.action, held.gate, held.n) == (Action.HOLD, HoldReason.DATA, 0)


def test_absorb__first_copies_to_a_cold_candidate__are_not_judged() -> None:
    progress = machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), SHADOWED, 100.0)
    cold = TickObservation(Window(Counts(100, 50, 100), Counts(900, 0, 900)))
    for now in (100.5, 101.0, 101.5):
        progress = machine.absorb(progress, cold, SHADOWED, now)
    assert progress.evidence.ticks == 0
    assert machine.judge(progress, cold, SHADOWED, 101.5).action is Action.HOLD
    assert machine.absorb(progress, cold, SHADOWED, 102.0).evidence.ticks == 1


def test_judge__shadow_compares_nothing__advances_after_its_wait() -> None:
    patient = replace(SHADOWED, shadow_wait_seconds=60)
    progress = machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), patient, 100.0)
    assert machine.judge(progress, TickObservation(None), patient, 159.0).action is Action.HOLD
    verdict = machine.judge(progress, TickObservation(None), patient, 160.0)
    assert (verdict.action, verdict.gate) == (Action.ADVANCE, HoldReason.DATA)
    assert machine.apply_verdict(progress, verdict, patient, 160.0).phase is RolloutPhase.SHIFT
    assert machine.judge(progress, TickObservation(None), SHADOWED, 160.0).action is Action.HOLD


def test_absorb__copies_compared_beside_traffic__are_no_requests_of_the_step() -> None:
    tick = TickObservation(GOOD, shadow=ShadowWindow(requests=40, rows=40))
    progress = machine.absorb(SHIFTED, tick, SHADOWED, 200.0)
    assert progress.step_requests == 100
    assert progress.evidence.shadow.total.requests == 40


def test_judge__shadow_with_doubts__does_not_end_after_its_wait() -> None:
    patient = replace(SHADOWED, shadow_wait_seconds=60, max_disagreement=0.01)
    progress = machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), patient, 100.0)
    wrong = TickObservation(
        GOOD, shadow=ShadowWindow(requests=40, disagreed=1, rows=40, differed=1)
    )
    for _ in range(3):
        progress = machine.absorb(progress, wrong, patient, 110.0)
    held = machine.judge(progress, wrong, patient, 170.0)
    assert (held.action, held.gate) == (Action.HOLD, Gate.DISAGREEMENT)


def test_pause__resumed_later__kept_the_weight_and_stopped_the_clocks() -> None:
    paused = applied(SHIFTED, OperatorCommand.PAUSE, 105.0)
    assert (paused.phase, paused.stage, paused.applied) == (
        RolloutPhase.PAUSED,
        RolloutPhase.SHIFT,
        7,
    )
    assert machine.candidate_weight(paused, SPEC) == 10
    held = machine.judge(looked(paused, 20, 5000.0), TickObservation(GOOD), SPEC, 5000.0)
    assert (held.action, held.gate) == (Action.HOLD, HoldReason.OPERATOR)
    resumed = applied(paused, OperatorCommand.RESUME, 5005.0)
    assert (resumed.phase, resumed.interrupted) == (RolloutPhase.SHIFT, None)
    assert resumed.since == SHIFTED.since + 4900.0
    assert resumed.started == SHIFTED.started + 4900.0


def test_judge__harm_while_paused__rolls_back() -> None:
    paused = applied(SHIFTED, OperatorCommand.PAUSE, 105.0)
    bad = Window(Counts(100, 60, 100), Counts(900, 0, 900))
    verdict = machine.judge(looked(paused, 20, 200.0, bad), TickObservation(bad), SPEC, 200.0)
    assert verdict.action is Action.ROLLBACK
    assert machine.apply_verdict(paused, verdict, SPEC, 200.0).phase is RolloutPhase.ROLLBACK
    dead = machine.judge(paused, TickObservation(None, alive=False), SPEC, 200.0)
    assert (dead.action, dead.gate) == (Action.ROLLBACK, Gate.HEALTH)


def test_pause__before_the_start__has_to_wait() -> None:
    assert machine.apply_command(RolloutProgress(), asked(OperatorCommand.PAUSE), SPEC, 1.0) is None
    warm = applied(RolloutProgress(phase=RolloutPhase.WARM), OperatorCommand.PAUSE, 2.0)
    assert machine.candidate_weight(warm, SPEC) == 0
    assert applied(warm, OperatorCommand.RESUME, 3.0).phase is RolloutPhase.WARM


def test_apply_command__nothing_to_change__is_noted_as_applied() -> None:
    resumed = applied(SHIFTED, OperatorCommand.RESUME, 101.0)
    assert resumed == replace(SHIFTED, applied=7)
    paused = applied(SHIFTED, OperatorCommand.PAUSE, 105.0)
    assert applied(paused, OperatorCommand.PAUSE, 110.0).paused == 105.0


def test_rollback_command__any_reversible_phase__returns_all_traffic() -> None:
    for progress in (RolloutProgress(), SHIFTED, applied(SHIFTED, OperatorCommand.PAUSE, 105.0)):
        reverted = applied(progress, OperatorCommand.ROLLBACK, 106.0)
        assert (reverted.phase, reverted.planned) == (RolloutPhase.ROLLBACK, Outcome.ROLLED_BACK)
        assert machine.candidate_weight(reverted, SPEC) == 0


@pytest.mark.parametrize("paused", [False, True])
def test_full__steps_and_gates__are_skipped_but_not_hard_failures(paused: bool) -> None:
    progress = applied(SHIFTED, OperatorCommand.PAUSE, 105.0) if paused else SHIFTED
    full = applied(progress, OperatorCommand.FULL, 106.0)
    assert (full.phase, full.step) == (RolloutPhase.BAKE, 2)
    assert machine.candidate_weight(full, SPEC) == 100
    bad = Window(Counts(100, 60, 100), Counts())
    worse = looked(full, 30, 110.0, bad)
    assert machine.judge(worse, TickObservation(bad), SPEC, 110.0).action is Action.HOLD
    dead = machine.judge(worse, TickObservation(None, alive=False), SPEC, 110.0)
    assert dead.action is Action.ROLLBACK
    verdict = machine.judge(worse, TickObservation(bad), SPEC, 126.0)
    assert (verdict.action, verdict.gate) == (Action.ADVANCE, HoldReason.OPERATOR)
    assert machine.apply_verdict(worse, verdict, SPEC, 126.0).planned is Outcome.PROMOTED


def test_full__before_the_candidate_serves__waits_for_it() -> None:
    full = applied(RolloutProgress(phase=RolloutPhase.WARM), OperatorCommand.FULL, 1.0)
    assert (full.phase, full.override) == (RolloutPhase.WARM, True)
    assert machine.warmed(full, SHADOWED, 2.0).phase is RolloutPhase.BAKE


def test_deadline__on_inconclusive_pause__pauses_and_restarts_the_time() -> None:
    spec = replace(SPEC, on_inconclusive=OnInconclusive.PAUSE)
    verdict = machine.judge(SHIFTED, TickObservation(None), spec, 1000.0)
    paused = machine.apply_verdict(SHIFTED, verdict, spec, 1000.0)
    assert (paused.phase, paused.ruling) == (RolloutPhase.PAUSED, verdict)
    assert machine.candidate_weight(paused, spec) == 10
    resumed = applied(paused, OperatorCommand.RESUME, 9000.0, spec)
    assert (resumed.phase, resumed.ruling, resumed.started) == (RolloutPhase.SHIFT, None, 9000.0)
    assert machine.judge(resumed, TickObservation(None), spec, 9900.0).gate is HoldReason.DATA


def test_judge__small_share_of_the_traffic__proves_no_latency() -> None:
    limited = replace(SPEC, max_p99_ms=100.0)
    unfair = replace(GOOD, representative=False)
    half = replace(SHIFTED, step=1)
    for window, proved in ((unfair, False), (GOOD, True)):
        progress = half
        for _ in range(60):
            progress = machine.absorb(progress, TickObservation(window), limited, 200.0)
        verdict = machine.judge(progress, TickObservation(window), limited, 200.0)
        assert (verdict.action is Action.ADVANCE) is proved, verdict


def test_move__next_step__begins_its_counts_and_evidence_anew() -> None:
    progress = looked(SHIFTED, 5, 200.0)
    assert (progress.step_requests, progress.step_ticks) == (500, 5)
    after = machine.move(progress, Signal.NEXT_STEP, 207.0)
    assert after == replace(
        progress,
        step=1,
        since=207.0,
        step_requests=0,
        step_ticks=0,
        evidence=next_step(progress.evidence),
    )
    assert after.evidence != progress.evidence


def test_move__settled__changes_the_phase_alone() -> None:
    progress = replace(
        looked(SHIFTED, 5, 200.0), phase=RolloutPhase.ROLLBACK, planned=Outcome.ROLLED_BACK
    )
    after = machine.move(progress, Signal.SETTLED, 9.0)
    done = RolloutPhase.DONE
    assert after == replace(progress, phase=done, since=9.0, step_requests=0, step_ticks=0)


@pytest.mark.parametrize("command", [OperatorCommand.RESUME, OperatorCommand.ROLLBACK])
def test_pause__ended_by_a_command__leaves_no_pause_behind(command: OperatorCommand) -> None:
    after = applied(applied(SHIFTED, OperatorCommand.PAUSE, 105.0), command, 106.0)
    assert (after.paused, after.interrupted) == (None, None)


@pytest.mark.parametrize(
    ("spec", "override", "phase"),
    [
        (SPEC, False, RolloutPhase.SHIFT),
        (SHADOWED, False, RolloutPhase.SHADOW),
        (SPEC, True, RolloutPhase.BAKE),
    ],
)
def test_warmed__candidate_serves__begins_the_next_phase_and_the_deadline_now(
    spec: RolloutSpec, override: bool, phase: RolloutPhase
) -> None:
    warm = RolloutProgress(phase=RolloutPhase.WARM, override=override)
    after = machine.warmed(warm, spec, 42.0)
    assert (after.phase, after.since, after.started) == (phase, 42.0, 42.0)


def test_restored__previous_version_serves__gets_all_traffic_without_a_gate() -> None:
    after = machine.restored(RolloutProgress(phase=RolloutPhase.WARM), "too slow", 5.0)
    assert (after.phase, after.since, after.planned) == (
        RolloutPhase.FINALIZE,
        5.0,
        Outcome.RESTORED,
    )
    assert after.ruling == Verdict(Action.ADVANCE, HoldReason.OPERATOR, "too slow")
    assert machine.candidate_weight(after, SPEC) == 100


PAUSING = replace(SPEC, on_inconclusive=OnInconclusive.PAUSE)
BAKING = replace(SHIFTED, phase=RolloutPhase.BAKE, step=2)


@pytest.mark.parametrize(
    ("start", "action", "spec", "phase", "planned"),
    [
        (SHIFTED, Action.ROLLBACK, SPEC, RolloutPhase.ROLLBACK, Outcome.ROLLED_BACK),
        (SHIFTED, Action.INCONCLUSIVE, SPEC, RolloutPhase.ROLLBACK, Outcome.INCONCLUSIVE),
        (BAKING, Action.ADVANCE, SPEC, RolloutPhase.FINALIZE, Outcome.PROMOTED),
        (SHIFTED, Action.INCONCLUSIVE, PAUSING, RolloutPhase.PAUSED, None),
    ],
)
def test_apply_verdict__one_that_ends_a_phase__is_kept_with_its_moment(
    start: RolloutProgress,
    action: Action,
    spec: RolloutSpec,
    phase: RolloutPhase,
    planned: Outcome | None,
) -> None:
    verdict = Verdict(action, HoldReason.PROOF, "why")
    after = machine.apply_verdict(start, verdict, spec, 300.0)
    assert (after.phase, after.planned, after.ruling) == (phase, planned, verdict)
    assert (after.paused if phase is RolloutPhase.PAUSED else after.since) == 300.0


def test_apply_verdict__advance__begins_the_next_step_now() -> None:
    advance = Verdict(Action.ADVANCE, HoldReason.PROOF, "why")
    after = machine.apply_verdict(SHIFTED, advance, SPEC, 300.0)
    assert (after.phase, after.step, after.since) == (RolloutPhase.SHIFT, 1, 300.0)


def test_rollback_command__reason__is_the_ruling() -> None:
    after = applied(SHIFTED, OperatorCommand.ROLLBACK, 106.0)
    assert after.ruling == Verdict(Action.ROLLBACK, HoldReason.OPERATOR, "by hand")
    assert after.since == 106.0


def test_absorb__tick_without_a_request__is_no_tick_of_the_step() -> None:
    none, one = (Window(Counts(n, 0, n), Counts(900, 0, 900)) for n in (0, 1))
    assert looked(SHIFTED, 1, 200.0, none).step_ticks == 0
    assert looked(SHIFTED, 1, 200.0, one).step_ticks == 1


def test_absorb__traffic_during_the_shadow__is_no_data_of_the_shadow() -> None:
    progress = machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), SHADOWED, 100.0)
    progress = machine.absorb(progress, TickObservation(GOOD), SHADOWED, 200.0)
    assert (progress.step_requests, progress.step_ticks) == (0, 0)


def test_warming_up__second_step__is_over() -> None:
    second = machine.move(SHIFTED, Signal.NEXT_STEP, 200.0)
    assert not machine.warming_up(second, SPEC, 200.5)


def judged(
    progress: RolloutProgress,
    now: float,
    spec: RolloutSpec = SPEC,
    *,
    alive: bool = True,
) -> Verdict:
    return machine.judge(progress, TickObservation(GOOD, alive=alive), spec, now)


def test_judge__candidate_died_or_is_unhealthy__says_so() -> None:
    dead = judged(SHIFTED, 101.0, alive=False)
    assert dead == Verdict(Action.ROLLBACK, Gate.HEALTH, "the candidate's process died")
    sick = judged(replace(SHIFTED, unhealthy_ticks=4), 101.0)
    why = "the candidate failed its health check at 4 ticks in a row"
    assert sick == Verdict(Action.ROLLBACK, Gate.HEALTH, why, 4, 3)


def test_judge__few_answers__says_how_many_are_needed() -> None:
    few = Window(Counts(10, 0, 10), Counts(90, 0, 90))
    why = "30 answers in 3 ticks at this step, 50 are needed"
    for spec in (SPEC, replace(SPEC, shadow_requests=10)):
        assert judged(looked(SHIFTED, 3, 200.0, few), 200.0, spec) == Verdict(
            Action.HOLD, HoldReason.DATA, why, 30, 50, 30
        )
    assert judged(looked(SHIFTED, 5, 200.0, few), 200.0).action is Action.ADVANCE


def test_judge__short_time__says_how_long_a_step_is() -> None:
    progress = looked(SHIFTED, 5, 105.0)
    assert judged(progress, 105.0) == Verdict(
        Action.HOLD, HoldReason.STEP_TIME, "5.0 of 10 s at this step", 5.0, 10, 500
    )
    assert judged(progress, 110.0) == Verdict(
        Action.ADVANCE, HoldReason.STEP_TIME, "every gate is kept", n=500
    )


def test_judge__end_of_the_bake__says_what_it_does_not_exclude() -> None:
    progress = looked(BAKING, 10, 119.0)
    assert judged(progress, 119.0).limit == 20
    why = "every gate is kept; a fault that comes less often than every 2 s is not excluded"
    assert judged(progress, 120.0) == Verdict(Action.ADVANCE, HoldReason.PROOF, why, n=1000)


def test_judge__shadow__has_a_number_and_a_time_of_its_own() -> None:
    progress = machine.warmed(RolloutProgress(phase=RolloutPhase.WARM), SHADOWED, 100.0)
    tick = TickObservation(None, shadow=ShadowWindow(requests=10, rows=10))
    for _ in range(4):
        progress = machine.absorb(progress, tick, SHADOWED, 104.0)
    held = judged(progress, 104.0, SHADOWED)
    assert (held.gate, held.value, held.limit, held.n) == (HoldReason.STEP_TIME, 4.0, 5, 40)


def test_judge__deadline__names_what_is_missing() -> None:
    why = "the deadline came before the proof"
    progress = replace(looked(replace(SHIFTED, step=1), 10, 150.0), started=100.0)
    for each, missing in (
        (progress, ""),
        (replace(progress, step_requests=3), ": 3 answers in 10 ticks at this step, 50 are needed"),
    ):
        assert judged(each, 1150.0) == Verdict(
            Action.INCONCLUSIVE, HoldReason.DEADLINE, why + missing, 1050.0, 1000, 1000
        )


def test_judge__paused__says_in_which_phase() -> None:
    paused = applied(looked(SHIFTED, 3, 105.0), OperatorCommand.PAUSE, 105.0)
    why = "paused in shift; harm would still take the traffic back"
    assert judged(paused, 106.0) == Verdict(Action.HOLD, HoldReason.OPERATOR, why, n=300)


def test_judge__operator_skips_the_gates__holds_until_the_bake_is_over() -> None:
    full = replace(looked(BAKING, 3, 110.0), override=True)
    why = "an operator skips the gates; the old revision stays warm"
    assert judged(full, 110.0) == Verdict(Action.HOLD, HoldReason.OPERATOR, why, 10.0, 20, 300)
    why = "an operator skipped the gates: no proof"
    assert judged(full, 120.0) == Verdict(Action.ADVANCE, HoldReason.OPERATOR, why, n=300)


def test_judge__share_beyond_a_limit_without_proof__holds_the_step() -> None:
    bad = Window(Counts(100, 2, 100), Counts(900, 0, 900))
    held = judged(looked(SHIFTED, 3, 150.0, bad), 150.0)
    assert (held.action, held.gate) == (Action.HOLD, Gate.ERRORS_VS_LIMIT)


def test_judge__one_percent_is_mirrored_and_differs__holds_the_step() -> None:
    spec = replace(SHADOWED, mirror_percent=1, max_disagreement=0.01)
    wrong = ShadowWindow(requests=40, disagreed=1, rows=40, differed=1)
    progress = SHIFTED
    for _ in range(3):
        progress = machine.absorb(progress, TickObservation(GOOD, shadow=wrong), spec, 150.0)
    held = judged(progress, 150.0, spec)
    assert (held.action, held.gate) == (Action.HOLD, Gate.DISAGREEMENT)


def test_judge__live_errors_come_in_bursts__proof_counts_them_so_in_the_bake_only() -> None:
    bursty = [(Counts(100, 50 if each % 20 == 0 else 0, 100), 5.0) for each in range(200)]
    start = replace(SHIFTED, step=1, evidence=begin(bursty, SPEC))
    assert judged(looked(start, 10, 150.0), 150.0).action is Action.ADVANCE
    baking = looked(replace(start, phase=RolloutPhase.BAKE, step=2), 10, 150.0)
    held = judged(baking, 150.0)
    assert (held.action, held.gate) == (Action.HOLD, HoldReason.PROOF)
