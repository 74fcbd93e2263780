"""One rollout on the in-memory twins: tick, look at the state, tick."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.domain.interfaces import ProcessState, TrafficSplit
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec, Slot
from mlctl.rollout.domain.statistics.verdict import Gate, HoldReason
from mlctl.rollout.journal import records
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import JournalEvent, Rollout
from tests.support.clock import ManualClock
from tests.support.memory import MemoryDataPlane, MemoryLauncher, memory_world
from tests.support.rollouts import revision

EDGES = (100.0, 200.0)
SPEC = RolloutSpec(
    steps=(10, 50, 100),
    step_seconds=3,
    min_requests=20,
    max_p99_ms=200.0,
    max_error_rate=0.05,
    warmup_seconds=1,
    bake_seconds=4,
    deadline_seconds=200,
)


@dataclass
class Stage:
    """A deployment with a rollout, and the twins under it."""

    journal: Journal
    clock: ManualClock
    data_plane: MemoryDataPlane
    launcher: MemoryLauncher
    spec: RolloutSpec = SPEC

    def __post_init__(self) -> None:
        self.journal.create(
            "shop", Ports(1, 2), DeploymentSettings(drain_seconds=5), revision("tiny:aa")
        )
        rollout = self.journal.begin("shop", revision("tiny:bb"), self.spec)
        self.controller = self.take_over(rollout)

    def take_over(self, rollout: int) -> Controller:
        world = memory_world(self.journal, self.data_plane, self.clock, self.launcher)
        self.controller = Controller(self.journal.rollout(rollout), world)
        return self.controller

    def tick(self, times: int = 1, *, errors: int = 0, slow: int = 0, requests: int = 200) -> None:
        """Ticks of one second with traffic by weight, the candidate's with faults."""
        for _ in range(times):
            self.clock.advance(1.0)
            for slot, weight in self.data_plane.weights.items():
                n = requests * weight // 100
                bad = slot is Slot.GREEN and n > 0
                self.data_plane.serve(slot, n, errors=errors * bad, slow=slow * bad)
            self.controller.tick()

    def until(self, phase: RolloutPhase, limit: int = 100) -> None:
        for _ in range(limit):
            if self.controller.progress.phase is phase:
                return
            self.tick()
        raise AssertionError(f"{phase} was not reached: {self.controller.progress}")

    def events(self, kind: str) -> list[JournalEvent]:
        return [event for event in self.journal.events("shop") if event.kind == kind]

    @property
    def record(self) -> Rollout:
        return self.journal.rollout(self.controller.rollout.id)


@pytest.fixture
def stage(journal: Journal, clock: ManualClock) -> Stage:
    return Stage(journal, clock, MemoryDataPlane(EDGES), MemoryLauncher(now=clock.wall))


def test_rollout__good_candidate__gets_all_traffic_step_by_step(stage: Stage) -> None:
    stage.until(RolloutPhase.DONE)
    assert stage.data_plane.history == [0, 10, 50, 100]
    assert stage.record.outcome is Outcome.PROMOTED
    assert stage.journal.deployment("shop").live == revision("tiny:bb")
    assert stage.journal.deployment("shop").slot is Slot.GREEN
    (ended,) = stage.events("ended")
    assert ended.body["verdict"]["gate"] == HoldReason.PROOF


def test_rollout__no_traffic__holds_and_ends_inconclusive(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.tick(50, requests=0)
    assert stage.controller.progress.phase is RolloutPhase.SHIFT
    assert stage.data_plane.weights[Slot.GREEN] == 10
    stage.tick(200, requests=0)
    assert stage.record.outcome is Outcome.INCONCLUSIVE
    assert stage.data_plane.weights[Slot.GREEN] == 0


@pytest.mark.parametrize(
    ("fault", "gate"),
    [({"errors": 10}, Gate.ERRORS_VS_LIMIT), ({"slow": 10}, Gate.LATENCY_VS_LIMIT)],
)
def test_rollout__bad_candidate__rolled_back(
    stage: Stage, fault: dict[str, int], gate: Gate
) -> None:
    stage.until(RolloutPhase.SHIFT)
    for _ in range(40):
        stage.tick(**fault)
    assert stage.record.outcome is Outcome.ROLLED_BACK
    assert stage.data_plane.history == [0, 10, 0]
    (ended,) = stage.events("ended")
    assert ended.body["verdict"]["gate"] == gate
    assert ended.body["verdict"]["n"] > 0
    (restored,) = stage.events("traffic_restored")
    assert restored.body["seconds_since_decision"] == 0.0
    assert restored.body["seconds_since_first_bad"] > 0.0


def test_rollout__candidate_dies__traffic_is_back_in_the_same_tick(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.launcher.probes[Slot.GREEN] = ProcessState.DEAD
    stage.tick()
    assert stage.data_plane.weights[Slot.GREEN] == 0


def test_warm__candidate_dies__rolled_back_with_its_log(stage: Stage) -> None:
    stage.launcher.probes[Slot.GREEN] = ProcessState.DEAD
    stage.tick(3)
    assert stage.record.outcome is Outcome.ROLLED_BACK
    assert stage.data_plane.history == [0]
    (ended,) = stage.events("ended")
    assert ended.body["verdict"]["gate"] == Gate.READY
    assert "its log ends" in ended.body["verdict"]["why"]


def test_warm__candidate_never_ready__rolled_back_at_the_limit(stage: Stage) -> None:
    stage.launcher.probes[Slot.GREEN] = ProcessState.STARTING
    stage.tick(110)
    assert stage.controller.progress.phase is RolloutPhase.WARM
    stage.tick(20)
    assert stage.controller.progress.ruling is not None
    assert "did not become ready" in stage.controller.progress.ruling.why


def test_warm__candidate_serves_another_digest__rolled_back(stage: Stage) -> None:
    stage.launcher.probes[Slot.GREEN] = ProcessState.WRONG_MODEL
    stage.tick(3)
    assert stage.controller.progress.ruling is not None
    assert "digest" in stage.controller.progress.ruling.why


def test_warm__proxy_finds_it_unhealthy__no_traffic(stage: Stage) -> None:
    stage.data_plane.healthy[Slot.GREEN] = False
    stage.tick(10)
    assert stage.controller.progress.phase is RolloutPhase.WARM
    stage.data_plane.healthy[Slot.GREEN] = True
    stage.tick()
    assert stage.data_plane.weights[Slot.GREEN] == 10


def test_rollout__configuration_rejected__rolled_back(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.data_plane.rejects = True
    with pytest.raises(Exception, match="refused"):
        stage.tick()
    assert stage.controller.progress.phase is RolloutPhase.ROLLBACK
    stage.data_plane.rejects = False
    stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.ROLLED_BACK


def test_rollback_command__with_a_reason__recorded_as_the_verdict(stage: Stage) -> None:
    stage.until(RolloutPhase.BAKE)
    stage.journal.request("shop", OperatorCommand.ROLLBACK, "the numbers look odd")
    stage.controller.tick()
    assert stage.data_plane.weights == {Slot.BLUE: 100, Slot.GREEN: 0}
    stage.until(RolloutPhase.DONE)
    (ended,) = stage.events("ended")
    assert ended.body["verdict"]["gate"] == HoldReason.OPERATOR
    assert ended.body["verdict"]["why"] == "the numbers look odd"


def test_rollback_command__after_a_bad_tick__its_time_does_not_count_from_it(
    stage: Stage,
) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.tick(errors=5)
    assert stage.controller.progress.first_bad is not None
    stage.journal.request("shop", OperatorCommand.ROLLBACK, "another one is better")
    stage.until(RolloutPhase.DONE)
    (restored,) = stage.events("traffic_restored")
    assert restored.body["seconds_since_first_bad"] is None


def test_rollback_command__during_the_last_tick_of_the_bake__applied(stage: Stage) -> None:
    """The request arrives between the tick's look and the record of its promotion."""
    stage.until(RolloutPhase.BAKE)
    real = stage.journal.save

    def save(
        rollout: Rollout, progress: RolloutProgress, kind: str, body: dict[str, Any], epoch: int
    ) -> None:
        if progress.phase is RolloutPhase.FINALIZE and not stage.events("rollback_requested"):
            stage.journal.request("shop", OperatorCommand.ROLLBACK, "at the last moment")
        real(rollout, progress, kind, body, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.journal, "save", save)
        stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.ROLLED_BACK
    assert stage.journal.deployment("shop").live == revision("tiny:aa")
    assert stage.data_plane.weights[Slot.GREEN] == 0


def test_weights__changed_by_another_writer__corrected_within_a_tick(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.data_plane.apply(TrafficSplit({Slot.BLUE: 0, Slot.GREEN: 100}))
    stage.tick()
    assert stage.data_plane.weights[Slot.GREEN] == 10


def test_rollback_command__live_revision_unhealthy__candidate_stays(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.data_plane.healthy[Slot.BLUE] = False
    stage.journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
    stage.tick(5)
    assert stage.controller.progress.phase is RolloutPhase.ROLLBACK
    assert stage.data_plane.endpoints[Slot.GREEN]
    stage.data_plane.healthy[Slot.BLUE] = True
    stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.ROLLED_BACK


def test_watch__no_traffic__is_said_once_and_in_each_verdict(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    for _ in range(8):
        stage.clock.advance(1.0)
        stage.controller.tick()
    events = stage.journal.events("shop")
    (said,) = [event for event in events if event.kind == "no_traffic"]
    assert "the gates need traffic" in said.body["why"]
    ticks = [event.body["verdict"]["why"] for event in events if event.kind == "tick"]
    assert ticks[-1].startswith("no requests in the last")
    stage.tick()
    last = stage.journal.events("shop")[-1]
    assert "no requests" not in str(last.body)


def test_rollback__candidate_stops_to_answer__is_killed_with_its_requests(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.data_plane.healthy[Slot.GREEN] = False
    stage.until(RolloutPhase.DONE)
    assert stage.record.progress.ruling is not None
    assert stage.record.progress.ruling.gate is Gate.HEALTH
    assert stage.launcher.killed == ["green/0"]


def test_rollback_command__candidate_answers__may_finish_its_requests(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
    stage.until(RolloutPhase.DONE)
    assert stage.launcher.killed == []


def test_resume__another_daemon__keeps_the_evidence(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.tick(3)
    before = stage.controller.progress
    stage.clock.advance(5.0)
    resumed = stage.take_over(stage.controller.rollout.id)
    resumed.resume(unwatched_seconds=5.0)
    after = resumed.progress
    assert after.evidence == before.evidence
    assert after == replace(
        before, since=stage.clock.wall(), step_requests=0, step_ticks=0, evidence=after.evidence
    )
    stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.PROMOTED


def test_resume__unwatched_for_too_long__rolled_back(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.clock.advance(60.0)
    stage.take_over(stage.controller.rollout.id).resume(unwatched_seconds=60.0)
    assert stage.data_plane.weights[Slot.GREEN] == 0
    stage.until(RolloutPhase.DONE)
    (ended,) = stage.events("ended")
    assert ended.body["verdict"]["gate"] == HoldReason.UNWATCHED


def test_tick__with_traffic__recorded_with_its_counts(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.tick(2)
    body = stage.events("tick")[-1].body
    assert body["weight"] == 10
    assert body["window"]["candidate"]["requests"] == 20
    assert body["window"]["live"]["requests"] == 180
    assert body["verdict"]["gate"] in {*Gate, *HoldReason}
    without_limit = {
        Gate.MEDIAN_VS_LIMIT,
        Gate.TTFT_VS_LIMIT,
        Gate.TPOT_VS_LIMIT,
        Gate.ACCURACY_VS_LIMIT,
    }
    assert set(body["e_values"]) == {g for g in Gate if "_vs_" in g} - without_limit


def test_pause__until_resumed__weight_stays(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.journal.request("shop", OperatorCommand.PAUSE, "lunch")
    stage.tick(300)
    assert stage.controller.progress.phase is RolloutPhase.PAUSED
    assert stage.data_plane.weights[Slot.GREEN] == 10
    stage.journal.request("shop", OperatorCommand.RESUME, "back")
    stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.PROMOTED


def test_pause__candidate_fails__rolled_back(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.journal.request("shop", OperatorCommand.PAUSE, "lunch")
    stage.tick(2)
    stage.tick(15, errors=10)
    assert stage.record.outcome is Outcome.ROLLED_BACK


def test_pause__daemon_replaced__still_paused(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.journal.request("shop", OperatorCommand.PAUSE, "lunch")
    stage.tick()
    stage.clock.advance(5.0)
    stage.take_over(stage.controller.rollout.id).resume(unwatched_seconds=5.0)
    stage.tick(50)
    assert stage.controller.progress.phase is RolloutPhase.PAUSED
    stage.journal.request("shop", OperatorCommand.RESUME, "back")
    stage.tick()
    assert stage.controller.progress.since <= stage.clock.wall()


def test_rollback_command__in_the_bake__takes_the_candidate_off_the_traffic(stage: Stage) -> None:
    stage.until(RolloutPhase.BAKE)
    stage.journal.request("shop", OperatorCommand.ROLLBACK, "the wrong one")
    stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.ROLLED_BACK
    assert stage.data_plane.weights[Slot.GREEN] == 0


def test_full_command__failing_candidate__promoted_and_recorded(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.journal.request("shop", OperatorCommand.FULL, "the live one is broken")
    stage.tick()
    assert stage.data_plane.weights[Slot.GREEN] == 100
    stage.tick(15, errors=20)
    assert stage.record.outcome is Outcome.PROMOTED
    (ended,) = stage.events("ended")
    assert ended.body["verdict"]["gate"] == HoldReason.OPERATOR


def test_shadow__proxy_cannot_copy__skipped_and_recorded(
    journal: Journal, clock: ManualClock
) -> None:
    shadowed = replace(SPEC, shadow_percent=20, mirror_percent=5)
    data_plane = MemoryDataPlane(EDGES, can_mirror=False)
    stage = Stage(journal, clock, data_plane, MemoryLauncher(), spec=shadowed)
    stage.until(RolloutPhase.DONE)
    assert stage.record.outcome is Outcome.PROMOTED
    told = [
        event.body["shadow_skipped"]
        for event in stage.events("phase")
        if "shadow_skipped" in event.body
    ]
    assert told == ["the proxy cannot copy requests"]


def test_shadow__before_the_first_step__copies_only(journal: Journal, clock: ManualClock) -> None:
    shadowed = replace(SPEC, shadow_percent=20)
    stage = Stage(journal, clock, MemoryDataPlane(EDGES), MemoryLauncher(), spec=shadowed)
    stage.until(RolloutPhase.SHADOW)
    stage.tick(20)
    assert stage.controller.progress.phase is RolloutPhase.SHADOW  # nothing was compared yet
    traffic = stage.data_plane.traffic
    assert traffic is not None
    assert (traffic.weights[Slot.GREEN], traffic.mirror, traffic.mirror_to) == (
        0,
        20,
        Slot.GREEN,
    )


def test_tick__a_daemon_is_woken_in_between__one_evaluation_per_interval(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    looks = len(stage.events("tick"))
    for _ in range(16):  # in one second, with ticks of half a second
        stage.clock.advance(1 / 16)
        stage.data_plane.serve(Slot.GREEN, 1, slow=1)
        stage.controller.tick()
    assert len(stage.events("tick")) - looks == 2
    assert stage.controller.progress.phase is RolloutPhase.SHIFT


def promoted(stage: Stage) -> None:
    """Serve tiny:aa in blue and promote tiny:bb; blue's replica stays, as its supervisor does."""
    served = stage.launcher.start(Slot.BLUE, revision("tiny:aa"))
    body = records.served_body(served)
    stage.journal.put_process("shop", "blue/0", served.process, body)
    stage.until(RolloutPhase.DONE)


def taken_back(stage: Stage) -> Rollout:
    """Request the rollback of the promotion, and take the new rollout up."""
    rollout = stage.journal.request("shop", OperatorCommand.ROLLBACK, "wrong answers")
    stage.take_over(rollout)
    return stage.journal.rollout(rollout)


def test_rollback__after_a_promotion_and_warm__one_tick_moves_all_traffic(stage: Stage) -> None:
    promoted(stage)
    started = len(stage.launcher.started)
    rollout = taken_back(stage)
    assert (rollout.reverts, rollout.slot) == (1, Slot.BLUE)
    stage.controller.tick()
    assert stage.data_plane.weights == {Slot.BLUE: 100, Slot.GREEN: 0}
    assert len(stage.launcher.started) == started
    assert stage.record.outcome is Outcome.RESTORED
    deployment = stage.journal.deployment("shop")
    assert (deployment.live, deployment.slot) == (revision("tiny:aa"), Slot.BLUE)
    assert deployment.previous is None
    assert stage.journal.promotion("shop") == rollout.id
    (restored,) = stage.events("traffic_restored")
    assert restored.body["seconds_since_decision"] == 0.0


def test_rollback__after_a_promotion_and_stopped__previous_version_is_started_first(
    stage: Stage,
) -> None:
    promoted(stage)
    stage.launcher.apart["blue/0"] = ProcessState.DEAD
    stage.launcher.probes[Slot.BLUE] = ProcessState.STARTING
    taken_back(stage)
    stage.controller.tick()
    assert stage.events("phase")[-1].body["cold"]
    assert stage.data_plane.weights[Slot.GREEN] == 100
    stage.launcher.probes[Slot.BLUE] = ProcessState.READY
    stage.controller.tick()
    assert stage.data_plane.weights[Slot.BLUE] == 100
    assert stage.record.outcome is Outcome.RESTORED


def test_rollback__previous_version_does_not_start__live_version_keeps_the_traffic(
    stage: Stage,
) -> None:
    promoted(stage)
    stage.launcher.probes[Slot.BLUE] = ProcessState.DEAD
    taken_back(stage)
    stage.tick(3)
    assert stage.record.outcome is Outcome.ROLLED_BACK
    assert stage.data_plane.weights == {Slot.BLUE: 0, Slot.GREEN: 100}
    deployment = stage.journal.deployment("shop")
    assert deployment.live == revision("tiny:bb")
    assert deployment.previous is not None


def test_rollback__daemon_killed_at_any_write__another_one_completes_it(stage: Stage) -> None:
    promoted(stage)
    rollout = taken_back(stage)
    real = stage.journal.save

    def save(*values: Any) -> None:
        real(*values)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.journal, "save", save)
        for _ in range(10):
            if stage.journal.rollout(rollout.id).outcome is not None:
                break
            with contextlib.suppress(KeyboardInterrupt):
                stage.take_over(rollout.id).tick()
    assert stage.journal.rollout(rollout.id).outcome is Outcome.RESTORED
    assert stage.data_plane.weights == {Slot.BLUE: 100, Slot.GREEN: 0}


def test_rollback__unwatched_for_long__goes_on(stage: Stage) -> None:
    promoted(stage)
    stage.launcher.probes[Slot.BLUE] = ProcessState.STARTING
    rollout = taken_back(stage)
    stage.controller.tick()
    stage.take_over(rollout.id).resume(unwatched_seconds=600.0)
    stage.launcher.probes[Slot.BLUE] = ProcessState.READY
    stage.controller.tick()
    assert stage.record.outcome is Outcome.RESTORED


@pytest.mark.parametrize("command", OperatorCommand)
def test_rollback__after_a_rollback_of_a_promotion__rejected(
    stage: Stage, command: OperatorCommand
) -> None:
    promoted(stage)
    taken_back(stage)
    for _ in range(2):
        with pytest.raises(MlctlError) as caught:
            stage.journal.request("shop", command, "again")
        assert caught.value.code is ErrorCode.NOT_FOUND
        stage.controller.tick()


def test_promote__after_a_promotion__the_one_before_cannot_be_taken_back(stage: Stage) -> None:
    promoted(stage)
    stage.journal.begin("shop", revision("tiny:cc"), SPEC)
    assert stage.journal.deployment("shop").previous is None


@pytest.mark.parametrize("tag", ["tiny:aa", "tiny:cc"])
def test_promote__replicas_left_in_the_slot__waits_until_they_are_stopped(
    stage: Stage, tag: str
) -> None:
    promoted(stage)
    stage.take_over(stage.journal.begin("shop", revision(tag), SPEC))
    started = len(stage.launcher.started)
    stage.tick(3)
    assert stage.controller.progress.phase is RolloutPhase.PENDING
    assert len(stage.launcher.started) == started
    stage.journal.drop_process("shop", "blue/0")
    stage.tick()
    assert stage.launcher.started[-1] == (Slot.BLUE, revision(tag))


def test_promote__daemon_killed_while_it_starts_the_candidate__started_again_at_once(
    stage: Stage,
) -> None:
    rollout = stage.record
    served = stage.launcher.start(rollout.slot, rollout.candidate)
    body = records.served_body(served)
    stage.journal.put_process("shop", f"{rollout.slot}/0", served.process, body)
    stage.take_over(rollout.id)
    stage.tick()
    assert stage.launcher.started == [(rollout.slot, rollout.candidate)] * 2
    assert stage.controller.progress.phase is RolloutPhase.WARM


def test_rollback__while_the_previous_version_is_stopped__started_again(stage: Stage) -> None:
    promoted(stage)
    started = len(stage.launcher.started)
    stage.journal.release_previous(
        "shop", "the time to keep it has ended", stage.journal.deployment("shop").epoch
    )
    taken_back(stage)
    stage.controller.tick()
    assert len(stage.launcher.started) == started + 1
    assert stage.record.outcome is Outcome.RESTORED
