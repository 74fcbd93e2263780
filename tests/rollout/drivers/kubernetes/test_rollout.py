"""Whole rollouts by the unchanged controller on a cluster's data_plane, meter and launcher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.daemon.reporting.notices import notice
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable, TrafficSplit
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Outcome,
    Ports,
    Revision,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.domain.statistics.verdict import Gate
from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane
from mlctl.rollout.drivers.kubernetes.launcher import KubernetesLauncher
from mlctl.rollout.drivers.kubernetes.route import Claim
from mlctl.rollout.journal.journal import Journal, StaleEpochError
from tests.rollout.drivers.kubernetes.conftest import BLUE_DIGEST, GREEN_DIGEST
from tests.support.clock import ManualClock
from tests.support.kube import FakeKube, route

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


def revision(digest: str) -> Revision:
    return Revision(f"tiny:{digest[:4]}", digest, "tiny-optimized", "1", "models:/tiny/1")


@dataclass
class Stage:
    """A deployment in a cluster with a rollout of green."""

    state: FakeKube
    target: KubernetesTarget
    journal: Journal
    clock: ManualClock
    data_plane: KubernetesDataPlane
    epoch: int
    directory: Path

    def __post_init__(self) -> None:
        rollout = self.journal.begin("shop", revision(GREEN_DIGEST), SPEC)
        launcher = KubernetesLauncher(self.target, self.data_plane, self.directory)
        settings = self.journal.deployment("shop").settings
        world = DaemonContext(
            "shop",
            self.epoch,
            self.journal,
            settings,
            self.data_plane,
            self.data_plane,
            launcher,
            self.clock,
            SERVED_EDGES_MS,
        )
        self.controller = Controller(self.journal.rollout(rollout), world)

    def tick(self, times: int = 1, *, seconds: float = 0.004, outcome: str = "ok") -> None:
        """Ticks of one second in which the pods get 200 requests by the route's weights."""
        for _ in range(times):
            self.clock.advance(1.0)
            for service, weight in self.weights().items():
                pods = self.state.pods[service]
                green = service == "shop-green"
                for pod in pods:
                    n = 2 * weight // len(pods)
                    bad = n // 5 if green and (outcome != "ok") else 0
                    pod.serve(n - bad, seconds=seconds if green else 0.004)
                    pod.serve(bad, outcome=outcome)
            self.controller.tick()

    def until(self, phase: RolloutPhase, limit: int = 60) -> None:
        for _ in range(limit):
            if self.controller.progress.phase is phase:
                return
            self.tick()
        raise AssertionError(f"{phase} was not reached: {self.controller.progress}")

    def weights(self) -> dict[str, int]:
        return self.state.weights()

    @property
    def outcome(self) -> Outcome | None:
        return self.journal.rollout(self.controller.rollout.id).outcome

    @property
    def why(self) -> tuple[str, str]:
        (ended,) = (each for each in self.journal.events("shop") if each.kind == "ended")
        return ended.body["verdict"]["gate"], ended.body["verdict"]["why"]


@pytest.fixture
def stage(
    state: FakeKube, target: KubernetesTarget, journal: Journal, clock: ManualClock, tmp_path: Path
) -> Iterator[Stage]:
    settings = DeploymentSettings(drain_seconds=2, ready_seconds=20, kubernetes=target)
    journal.create("shop", Ports(0, 0), settings, revision(BLUE_DIGEST))
    epoch = journal.take_over("shop")
    with KubernetesDataPlane(target, Claim("shop-1", epoch), accept_seconds=0.3) as data_plane:
        yield Stage(state, target, journal, clock, data_plane, epoch, tmp_path)


def test_settings__of_a_cluster__are_read_back_from_the_journal(stage: Stage) -> None:
    assert stage.journal.deployment("shop").settings.kubernetes == stage.target


def test_rollout__good_candidate__is_promoted(stage: Stage) -> None:
    seen: list[int] = []
    while stage.controller.progress.phase is not RolloutPhase.DONE and len(seen) < 60:
        stage.tick()
        if stage.weights()["shop-green"] not in seen:
            seen.append(stage.weights()["shop-green"])
    assert stage.outcome is Outcome.PROMOTED
    assert seen == [0, 10, 50, 100]
    assert stage.state.route()["spec"]["rules"][1] == route()["spec"]["rules"][1]
    assert stage.journal.deployment("shop").live == revision(GREEN_DIGEST)


@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        ({"outcome": "internal"}, Gate.ERRORS_VS_LIVE),
        ({"seconds": 0.45}, Gate.LATENCY_VS_LIMIT),
    ],
)
def test_rollout__bad_candidate__is_rolled_back(
    stage: Stage, fault: dict[str, str], gate: Gate
) -> None:
    stage.until(RolloutPhase.SHIFT)
    for _ in range(30):
        if stage.outcome is None:
            stage.tick(**fault)  # type: ignore[arg-type]
    assert stage.outcome is Outcome.ROLLED_BACK
    assert stage.weights() == {"shop-blue": 100, "shop-green": 0}
    assert stage.why[0] == gate


def test_rollout__pods_never_ready__is_rolled_back_without_weight(stage: Stage) -> None:
    stage.state.pods["shop-green"] = []
    stage.tick(40)
    assert stage.outcome is Outcome.ROLLED_BACK
    assert stage.why[0] == Gate.READY
    assert "no ready pod" in stage.why[1]
    assert all("100" in str(each["spec"]) for each in stage.state.writes if "spec" in each)


def test_rollout__pods_are_being_updated__waits(stage: Stage) -> None:
    stage.state.pods["shop-green"][0].digest = "c" * 64
    stage.tick(5)
    assert stage.controller.progress.phase is RolloutPhase.WARM
    stage.state.pods["shop-green"][0].digest = GREEN_DIGEST
    stage.until(RolloutPhase.SHIFT)


def test_rollout__pod_serves_another_digest__is_rolled_back(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.state.pods["shop-green"][1].digest = "c" * 64
    stage.tick()
    assert stage.weights() == {"shop-blue": 100, "shop-green": 0}
    stage.until(RolloutPhase.DONE)
    assert stage.outcome is Outcome.ROLLED_BACK
    assert stage.why[0] == Gate.HEALTH
    assert f"pod green-1 serves {'c' * 64}, not {GREEN_DIGEST}" in stage.why[1]
    (*_, ended) = stage.journal.events("shop")
    told = notice(ended)
    assert told is not None
    assert "does not serve the digest that its Bento names" in told["text"]


def test_rollout__api_server_is_down__holds_and_resumes(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    before, weights = stage.controller.progress, stage.weights()
    stage.state.down = 503
    for _ in range(5):
        with pytest.raises(DataPlaneUnavailable):
            stage.tick()
    assert stage.controller.progress == before
    assert stage.weights() == weights
    stage.state.down = 0
    stage.until(RolloutPhase.DONE)
    assert stage.outcome is Outcome.PROMOTED


def test_rollout__route_deleted_and_restored__is_rolled_back(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.state.objects.clear()
    for _ in range(3):
        with pytest.raises(DataPlaneRejected, match="does not exist"):
            stage.controller.tick()
    assert stage.controller.progress.phase is RolloutPhase.ROLLBACK
    stage.state.put("httproutes", route(weights=(50, 50)))
    stage.until(RolloutPhase.DONE)
    assert stage.outcome is Outcome.ROLLED_BACK
    assert stage.weights() == {"shop-blue": 100, "shop-green": 0}


def test_rollout__weights_changed_by_others__are_restored(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    stage.state.put("httproutes", route(weights=(0, 100)))
    stage.controller.tick()
    assert stage.weights() == {"shop-blue": 90, "shop-green": 10}


def test_daemon__replaced_by_a_newer_epoch__stops(stage: Stage) -> None:
    stage.until(RolloutPhase.SHIFT)
    with KubernetesDataPlane(stage.target, Claim("shop-1", stage.epoch + 1)) as newer:
        newer.apply(TrafficSplit({Slot.BLUE: 100}))
        with pytest.raises(StaleEpochError):
            stage.controller.tick()
    assert stage.weights() == {"shop-blue": 100, "shop-green": 0}
