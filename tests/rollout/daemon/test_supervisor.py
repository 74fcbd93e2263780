"""What the supervisor does about the live Bento; a process of the test stands for Envoy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.supervisor import Supervisor, not_warm
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable, ProcessState, RunningRevision
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.process_ref import PROXY
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Endpoint,
    Outcome,
    Ports,
    PreviousRevision,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.drivers.envoy.proxy import EnvoyFiles
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.drivers.local.fleet import replicas_of
from mlctl.rollout.journal import records
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.memory import MemoryDataPlane, MemoryLauncher
from tests.support.rollouts import revision

pytestmark = pytest.mark.slow


class Stage:
    def __init__(self, journal: Journal, clock: ManualClock, directory: Path) -> None:
        ports = Ports(1, 2)
        journal.create("shop", ports, DeploymentSettings(ready_seconds=10), revision("tiny:aa"))
        self.journal, self.clock = journal, clock
        self.data_plane, self.launcher = MemoryDataPlane((100.0,)), MemoryLauncher()
        self.launcher.probes[Slot.BLUE] = ProcessState.STARTING
        argv = [sys.executable, "-c", "import time; time.sleep(60)"]
        journal.put_process("shop", PROXY, processes.spawn(str(directory), argv, directory / "log"))
        self.hanging: set[str] = set()
        files = EnvoyFiles(directory, ports)
        self._files, self._directory = files, directory
        self.supervisor = self.take_over()

    def take_over(self) -> Supervisor:
        self.epoch = self.journal.take_over("shop")
        world = DaemonContext(
            "shop",
            self.epoch,
            self.journal,
            self.journal.deployment("shop").settings,
            self.data_plane,
            self.data_plane,
            self.launcher,
            self.clock,
            (100.0,),
        )
        return Supervisor(world, self._directory, self._files, self.hung)

    def hung(self, served: RunningRevision) -> bool:
        """The stage knows which replicas hang."""
        return served.process.token in self.hanging

    def observe(self, probe: ProcessState, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.launcher.probes[Slot.BLUE] = probe
        self.supervisor.ensure(self.journal.deployment("shop"))

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.journal.events("shop") if event.kind != "up"]


@pytest.fixture
def stage(journal: Journal, clock: ManualClock, tmp_path: Path) -> Iterator[Stage]:
    yield Stage(journal, clock, tmp_path)
    processes.end_strays(str(tmp_path))


def test_ready__proxy_finds_it_healthy__recorded_once(stage: Stage) -> None:
    stage.observe(ProcessState.STARTING)
    stage.data_plane.healthy[Slot.BLUE] = False
    stage.observe(ProcessState.READY)
    assert not stage.supervisor.serving
    stage.data_plane.healthy[Slot.BLUE] = True
    stage.observe(ProcessState.READY)
    stage.observe(ProcessState.READY)
    assert stage.kinds == ["ready"]
    assert stage.data_plane.endpoints[Slot.BLUE]


def test_endpoints__proxy_unavailable_for_a_moment__connected_at_the_next_tick(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.observe(ProcessState.STARTING)

    def unavailable(_slot: Slot, _endpoints: tuple[Endpoint, ...]) -> None:
        raise DataPlaneUnavailable("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(stage.data_plane, "connect", unavailable)
        stage.observe(ProcessState.READY)
    assert Slot.BLUE not in stage.data_plane.endpoints
    stage.observe(ProcessState.READY)
    assert stage.data_plane.endpoints[Slot.BLUE]


@pytest.mark.parametrize("probe", [ProcessState.DEAD, ProcessState.WRONG_MODEL])
def test_restart__bento_fails_to_start__recorded_and_retried(
    stage: Stage, probe: ProcessState
) -> None:
    stage.observe(ProcessState.STARTING)
    stage.observe(probe)
    assert stage.kinds == ["start_failed"]
    assert len(stage.launcher.started) == 1
    stage.observe(ProcessState.STARTING, seconds=0.5)
    assert len(stage.launcher.started) == 1
    stage.observe(ProcessState.STARTING, seconds=1.0)
    assert len(stage.launcher.started) == 2


def test_restart__bento_not_ready_in_time__recorded(stage: Stage) -> None:
    stage.observe(ProcessState.STARTING)
    stage.observe(ProcessState.STARTING, seconds=9.0)
    assert stage.kinds == []
    stage.observe(ProcessState.STARTING, seconds=2.0)
    assert stage.kinds == ["start_failed"]


def test_restart__another_daemon__starting_bento_keeps_its_time(stage: Stage) -> None:
    stage.observe(ProcessState.STARTING)
    stage.clock.advance(60.0)
    stage.supervisor = stage.take_over()
    stage.observe(ProcessState.STARTING)
    assert stage.kinds == []


def test_restart__bento_dies_later__started_again(stage: Stage) -> None:
    stage.observe(ProcessState.STARTING)
    stage.observe(ProcessState.READY)
    stage.observe(ProcessState.DEAD)
    assert len(stage.launcher.started) == 2  # at once: it had served
    stage.observe(ProcessState.STARTING, seconds=0.2)
    stage.observe(ProcessState.READY)
    assert stage.kinds == ["ready", "restarted", "ready"]
    stage.observe(ProcessState.DEAD)
    assert len(stage.launcher.started) == 2  # twice in a row: after a pause
    stage.observe(ProcessState.STARTING, seconds=1.0)
    assert len(stage.launcher.started) == 3


def test_restart__keeps_failing__pauses_grow(stage: Stage) -> None:
    waits = []
    for _ in range(4):
        started, waited = len(stage.launcher.started), 0
        while len(stage.launcher.started) == started:
            stage.observe(ProcessState.STARTING, seconds=0.5)
            waited += 1
        waits.append(waited)
        stage.observe(ProcessState.DEAD, seconds=0.0)
    assert waits[1:] == sorted(set(waits[1:]))


class TestReplicas:
    """Several replicas, each with a state of its own; replica 0 follows the stage's probe."""

    @staticmethod
    def scale(stage: Stage, replicas: int, **changes: Any) -> None:
        stage.journal.resize("shop", lambda s: replace(s, replicas=replicas, **changes), "test")

    @staticmethod
    def roles(stage: Stage) -> set[str]:
        return {role for role in stage.journal.processes("shop") if "/" in role}

    def serving(self, stage: Stage, replicas: int) -> None:
        self.scale(stage, replicas)
        stage.observe(ProcessState.STARTING)
        stage.observe(ProcessState.READY)
        stage.observe(ProcessState.READY, seconds=2.0)
        assert len(stage.data_plane.endpoints[Slot.BLUE]) == replicas

    def test_replicas__one_not_ready__deployment_not_ready(self, stage: Stage) -> None:
        self.scale(stage, 2)
        stage.observe(ProcessState.STARTING)
        stage.launcher.apart["blue/1"] = ProcessState.STARTING
        stage.observe(ProcessState.READY)
        assert stage.kinds == ["scaled"]
        del stage.launcher.apart["blue/1"]
        stage.observe(ProcessState.READY)
        assert stage.kinds == ["scaled", "ready"]

    def test_replicas__one_dies__others_keep_serving(self, stage: Stage) -> None:
        self.serving(stage, 3)
        stage.launcher.apart["blue/1"] = ProcessState.DEAD
        stage.observe(ProcessState.READY)
        assert stage.supervisor.serving
        assert self.roles(stage) == {"blue/0", "blue/1", "blue/2"}
        assert len(stage.data_plane.endpoints[Slot.BLUE]) == 2
        stage.observe(ProcessState.READY, seconds=2.0)
        stage.observe(ProcessState.READY)
        assert len(stage.data_plane.endpoints[Slot.BLUE]) == 3
        told = stage.journal.events("shop")[-1]
        assert (told.kind, told.body["role"]) == ("restarted", "blue/1")

    def test_replicas__one_hangs__replaced(self, stage: Stage) -> None:
        self.serving(stage, 2)
        (served,) = [
            served
            for index, served in replicas_of(stage.journal, "shop", Slot.BLUE).items()
            if index == 1
        ]
        stage.hanging.add(served.process.token)
        stage.observe(ProcessState.READY)
        assert stage.journal.events("shop")[-1].body["probe"] == "hung"
        stage.observe(ProcessState.READY, seconds=2.0)
        stage.observe(ProcessState.READY)
        assert served not in replicas_of(stage.journal, "shop", Slot.BLUE).values()
        assert len(stage.data_plane.endpoints[Slot.BLUE]) == 2

    def test_replicas__crash_loop__recorded_once(self, stage: Stage) -> None:
        self.serving(stage, 2)
        for _ in range(12):
            stage.launcher.apart["blue/1"] = ProcessState.DEAD
            stage.observe(ProcessState.READY, seconds=20.0)
        assert stage.kinds.count("crash_loop") == 1
        assert stage.kinds.count("restarted") == 2
        assert len(stage.launcher.started) > 6

    def test_replicas__dies_after_a_long_time__no_crash_loop(self, stage: Stage) -> None:
        self.serving(stage, 2)
        for _ in range(5):
            stage.launcher.apart["blue/1"] = ProcessState.DEAD
            stage.observe(ProcessState.READY)
            for _ in range(20):
                stage.observe(ProcessState.READY, seconds=5.0)
        assert "crash_loop" not in stage.kinds
        assert stage.kinds.count("restarted") == 5

    def test_replicas__surplus__removed_from_the_proxy_before_it_is_stopped(
        self, stage: Stage
    ) -> None:
        self.serving(stage, 2)
        self.scale(stage, 1)
        stage.observe(ProcessState.READY, seconds=0.5)
        assert len(stage.data_plane.endpoints[Slot.BLUE]) == 1
        assert stage.launcher.apart.get("blue/1") is None
        stage.observe(ProcessState.READY, seconds=1.1)
        assert stage.launcher.apart["blue/1"] is ProcessState.DEAD
        stage.observe(ProcessState.READY)
        assert self.roles(stage) == {"blue/0"}

    def test_replicas__scaled_down_and_up_again__kept(self, stage: Stage) -> None:
        self.serving(stage, 2)
        self.scale(stage, 1)
        stage.observe(ProcessState.READY, seconds=0.5)
        self.scale(stage, 2)
        stage.observe(ProcessState.READY, seconds=5.0)
        assert len(stage.data_plane.endpoints[Slot.BLUE]) == 2
        assert len(stage.launcher.started) == 2

    def test_stand_in__no_replica__old_endpoint_stays_until_it_joined(self, stage: Stage) -> None:
        self.serving(stage, 1)
        (replica,) = stage.data_plane.endpoints[Slot.BLUE]
        stand_in = Endpoint(7, 8)
        settings = replace(DeploymentSettings(), replicas=0, min_replicas=0, max_replicas=1)
        asleep = (Slot.BLUE, revision("tiny:aa"), 0, settings)
        live = stage.supervisor.live
        live.ensure(*asleep, stand_in)
        assert set(stage.data_plane.endpoints[Slot.BLUE]) == {replica, stand_in}
        stage.clock.advance(2.0)
        live.ensure(*asleep, stand_in)
        assert stage.data_plane.endpoints[Slot.BLUE] == (stand_in,)
        assert stage.launcher.apart.get("blue/0") is None
        for _ in range(2):
            stage.clock.advance(2.0)
            live.ensure(*asleep, stand_in)
        assert self.roles(stage) == set()


class TestPrevious:
    """The previous revision in green, after a promotion that made blue live."""

    @staticmethod
    def promoted(stage: Stage, keep: float = 100.0) -> RunningRevision:
        """Record a promotion whose previous revision tiny:aa runs in the slot not live."""
        stage.observe(ProcessState.STARTING)
        stage.observe(ProcessState.READY)
        spec = RolloutSpec(keep_previous_seconds=keep)
        rollout = stage.journal.rollout(stage.journal.begin("shop", revision("tiny:bb"), spec))
        served = stage.launcher.start(Slot.GREEN, revision("tiny:bb"))
        body = records.served_body(served)
        stage.journal.put_process("shop", "green/0", served.process, body)
        for phase in (RolloutPhase.FINALIZE, RolloutPhase.DONE):
            progress = RolloutProgress(phase=phase, planned=Outcome.PROMOTED)
            stage.journal.save(rollout, progress, "phase", {}, stage.epoch)
            rollout = replace(rollout, progress=progress)
        return replicas_of(stage.journal, "shop", Slot.BLUE)[0]

    @staticmethod
    def pass_time(stage: Stage, seconds: int) -> None:
        for _ in range(seconds):
            stage.clock.advance(1.0)
            stage.supervisor.ensure(stage.journal.deployment("shop"))

    def test_previous__within_its_time__keeps_running(self, stage: Stage) -> None:
        former = self.promoted(stage)
        self.pass_time(stage, 50)
        assert stage.launcher.probe(former) is ProcessState.READY
        assert stage.data_plane.endpoints[Slot.BLUE] == (former.endpoint,)
        assert len(stage.launcher.started) == 2

    def test_previous__dies_within_its_time__started_again(self, stage: Stage) -> None:
        self.promoted(stage)
        stage.launcher.apart["blue/0"] = ProcessState.DEAD
        self.pass_time(stage, 3)
        assert stage.launcher.started[-1] == (Slot.BLUE, revision("tiny:aa"))

    def test_previous__daemon_restarted__still_kept(self, stage: Stage) -> None:
        former = self.promoted(stage)
        self.pass_time(stage, 2)
        stage.supervisor = stage.take_over()
        self.pass_time(stage, 5)
        assert stage.launcher.probe(former) is ProcessState.READY

    @pytest.mark.parametrize(("keep", "reported"), [(5.0, 1), (0.0, 0)])
    def test_previous__after_its_time__drained_and_stopped(
        self, stage: Stage, keep: float, reported: int
    ) -> None:
        former = self.promoted(stage, keep)
        self.pass_time(stage, 10)
        assert stage.launcher.probe(former) is ProcessState.DEAD
        assert stage.data_plane.endpoints[Slot.BLUE] == ()
        assert stage.kinds.count("previous_stopped") == reported
        previous = stage.journal.deployment("shop").previous
        assert previous is not None
        assert (previous.revision, previous.warm_until) == (revision("tiny:aa"), 0.0)

    def test_previous__rollout_requested__stopped_before_it_starts(self, stage: Stage) -> None:
        former = self.promoted(stage)
        stage.journal.begin("shop", revision("tiny:cc"), RolloutSpec())
        for _ in range(5):
            stage.clock.advance(1.0)
            active = stage.journal.active("shop")
            stage.supervisor.ensure(stage.journal.deployment("shop"), active)
        assert stage.launcher.probe(former) is ProcessState.DEAD
        assert replicas_of(stage.journal, "shop", Slot.BLUE) == {}

    def test_previous__rollback_requested__stays_for_it(self, stage: Stage) -> None:
        former = self.promoted(stage)
        stage.journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
        for _ in range(200):
            stage.clock.advance(1.0)
            active = stage.journal.active("shop")
            stage.supervisor.ensure(stage.journal.deployment("shop"), active)
        assert stage.launcher.probe(former) is ProcessState.READY


@pytest.mark.parametrize(
    ("now", "free", "why"),
    [
        (99.0, 0.5, None),
        (99.0, 0.1, None),
        (100.0, 0.5, "the time to keep it has ended"),
        (50.0, 0.04, "4% of the memory is available (minimum 10%)"),
    ],
)
def test_not_warm__time_and_memory__reason(now: float, free: float, why: str | None) -> None:
    previous = PreviousRevision(revision("tiny:aa"), warm_until=100.0, replicas=1, promotion=1)
    assert not_warm(previous, now, free) == why


def test_split__slot_still_has_another_revision__it_is_stopped_first(stage: Stage) -> None:
    stage.observe(ProcessState.STARTING)
    stage.observe(ProcessState.READY)
    for tag in ("tiny:bb", "tiny:cc"):
        stage.journal.split("shop", revision(tag), 50, sticky=False)
        for _ in range(10):
            stage.launcher.probes[Slot.GREEN] = ProcessState.READY
            stage.observe(ProcessState.READY, seconds=2.0)
        found = replicas_of(stage.journal, "shop", Slot.GREEN)
        assert [each.revision.bento for each in found.values()] == [tag]
        assert len(stage.supervisor.other.ready) == 1
        stage.journal.end_split("shop")
    for _ in range(10):
        stage.observe(ProcessState.READY, seconds=2.0)
    assert not replicas_of(stage.journal, "shop", Slot.GREEN)
    assert replicas_of(stage.journal, "shop", Slot.BLUE)
