"""What the supervisor does about the live Bento; a process of the test stands for Envoy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle.clock import ManualClock
from rollout.daemon.controller import World
from rollout.daemon.replicas import LiveReplicas
from rollout.daemon.supervisor import PROXY, Supervisor
from rollout.domain.ports import PlaneUnavailable, ProcessState, RunningRevision
from rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from rollout.drivers.envoy.proxy import EnvoyFiles
from rollout.drivers.local import processes
from rollout.drivers.local.fleet import replicas_of
from rollout.journal.journal import Journal
from tests.support.memory import MemoryLauncher, MemoryPlane
from tests.support.rollouts import revision

pytestmark = pytest.mark.slow


class Stage:
    def __init__(self, journal: Journal, clock: ManualClock, directory: Path) -> None:
        ports = Ports(1, 2)
        journal.create("shop", ports, DeploymentSettings(ready_seconds=10), revision("tiny:aa"))
        self.journal, self.clock = journal, clock
        self.plane, self.launcher = MemoryPlane((100.0,)), MemoryLauncher()
        self.launcher.probes[Slot.BLUE] = ProcessState.STARTING
        argv = [sys.executable, "-c", "import time; time.sleep(60)"]
        journal.put_process("shop", PROXY, processes.spawn(str(directory), argv, directory / "log"))
        world = World(self.plane, self.plane, self.launcher, clock, (100.0,))
        self.hanging: set[str] = set()
        files = EnvoyFiles(directory, ports)
        self._files, self._directory, self._world = files, directory, world
        self.supervisor = self.take_over()

    def take_over(self) -> Supervisor:
        epoch = self.journal.take_over("shop")
        live = LiveReplicas("shop", self._world, self.journal, self, epoch)
        return Supervisor(self._directory, self._files, self._world, self.journal, live, epoch)

    def hung(self, served: RunningRevision) -> bool:
        """The stage knows which replicas hang."""
        return served.process.token in self.hanging

    def look(self, probe: ProcessState, seconds: float = 1.0) -> None:
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


def test_ready_is_told_once_when_the_proxy_agrees(stage: Stage) -> None:
    stage.look(ProcessState.STARTING)
    stage.plane.healthy[Slot.BLUE] = False
    stage.look(ProcessState.READY)
    assert not stage.supervisor.serving
    stage.plane.healthy[Slot.BLUE] = True
    stage.look(ProcessState.READY)
    stage.look(ProcessState.READY)
    assert stage.kinds == ["ready"]
    assert stage.plane.endpoints[Slot.BLUE]


def test_a_proxy_that_is_silent_for_a_moment_is_told_at_the_next_look(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.look(ProcessState.STARTING)

    def silent(_slot: Slot, _endpoints: tuple[Endpoint, ...]) -> None:
        raise PlaneUnavailable("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(stage.plane, "connect", silent)
        stage.look(ProcessState.READY)
    assert not stage.plane.endpoints
    stage.look(ProcessState.READY)
    assert stage.plane.endpoints[Slot.BLUE]


@pytest.mark.parametrize("probe", [ProcessState.DEAD, ProcessState.WRONG_MODEL])
def test_a_bento_that_fails_to_start_is_told_and_tried_again(
    stage: Stage, probe: ProcessState
) -> None:
    stage.look(ProcessState.STARTING)
    stage.look(probe)
    assert stage.kinds == ["start_failed"]
    assert len(stage.launcher.started) == 1
    stage.look(ProcessState.STARTING, seconds=0.5)
    assert len(stage.launcher.started) == 1
    stage.look(ProcessState.STARTING, seconds=1.0)
    assert len(stage.launcher.started) == 2


def test_a_bento_that_is_not_ready_in_time_fails(stage: Stage) -> None:
    stage.look(ProcessState.STARTING)
    stage.look(ProcessState.STARTING, seconds=9.0)
    assert stage.kinds == []
    stage.look(ProcessState.STARTING, seconds=2.0)
    assert stage.kinds == ["start_failed"]


def test_another_daemon_gives_a_starting_bento_its_time(stage: Stage) -> None:
    stage.look(ProcessState.STARTING)
    stage.clock.advance(60.0)
    stage.supervisor = stage.take_over()
    stage.look(ProcessState.STARTING)
    assert stage.kinds == []


def test_a_bento_that_dies_later_is_restarted(stage: Stage) -> None:
    stage.look(ProcessState.STARTING)
    stage.look(ProcessState.READY)
    stage.look(ProcessState.DEAD)
    stage.look(ProcessState.STARTING, seconds=2.0)
    stage.look(ProcessState.READY)
    assert stage.kinds == ["ready", "restarted", "ready"]


def test_pauses_grow_while_it_keeps_failing(stage: Stage) -> None:
    waits = []
    for _ in range(4):
        started, waited = len(stage.launcher.started), 0
        while len(stage.launcher.started) == started:
            stage.look(ProcessState.STARTING, seconds=0.5)
            waited += 1
        waits.append(waited)
        stage.look(ProcessState.DEAD, seconds=0.0)
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
        stage.look(ProcessState.STARTING)
        stage.look(ProcessState.READY)
        stage.look(ProcessState.READY, seconds=2.0)
        assert len(stage.plane.endpoints[Slot.BLUE]) == replicas

    def test_ready_when_all_are(self, stage: Stage) -> None:
        self.scale(stage, 2)
        stage.look(ProcessState.STARTING)
        stage.launcher.apart["blue/1"] = ProcessState.STARTING
        stage.look(ProcessState.READY)
        assert stage.kinds == ["scaled"]
        del stage.launcher.apart["blue/1"]
        stage.look(ProcessState.READY)
        assert stage.kinds == ["scaled", "ready"]

    def test_one_dies_and_the_others_carry_on(self, stage: Stage) -> None:
        self.serving(stage, 3)
        stage.launcher.apart["blue/1"] = ProcessState.DEAD
        stage.look(ProcessState.READY)
        assert stage.supervisor.serving
        assert self.roles(stage) == {"blue/0", "blue/2"}
        assert len(stage.plane.endpoints[Slot.BLUE]) == 2
        stage.look(ProcessState.READY, seconds=2.0)
        stage.look(ProcessState.READY)
        assert len(stage.plane.endpoints[Slot.BLUE]) == 3
        told = stage.journal.events("shop")[-1]
        assert (told.kind, told.body["role"]) == ("restarted", "blue/1")

    def test_a_hung_one_is_replaced(self, stage: Stage) -> None:
        self.serving(stage, 2)
        (served,) = [
            served
            for index, served in replicas_of(stage.journal, "shop", Slot.BLUE).items()
            if index == 1
        ]
        stage.hanging.add(served.process.token)
        stage.look(ProcessState.READY)
        assert stage.journal.events("shop")[-1].body["probe"] == "hung"
        stage.look(ProcessState.READY, seconds=2.0)
        stage.look(ProcessState.READY)
        assert served not in replicas_of(stage.journal, "shop", Slot.BLUE).values()
        assert len(stage.plane.endpoints[Slot.BLUE]) == 2

    def test_a_crash_loop_is_told_once(self, stage: Stage) -> None:
        self.serving(stage, 2)
        for _ in range(12):
            stage.launcher.apart["blue/1"] = ProcessState.DEAD
            stage.look(ProcessState.READY, seconds=20.0)
        assert stage.kinds.count("crash_loop") == 1
        assert stage.kinds.count("restarted") == 2
        assert len(stage.launcher.started) > 6

    def test_one_that_ran_long_before_begins_anew(self, stage: Stage) -> None:
        self.serving(stage, 2)
        for _ in range(5):
            stage.launcher.apart["blue/1"] = ProcessState.DEAD
            stage.look(ProcessState.READY)
            for _ in range(20):
                stage.look(ProcessState.READY, seconds=5.0)
        assert "crash_loop" not in stage.kinds
        assert stage.kinds.count("restarted") == 5

    def test_one_too_many_leaves_the_proxy_before_it_is_stopped(self, stage: Stage) -> None:
        self.serving(stage, 2)
        self.scale(stage, 1)
        stage.look(ProcessState.READY, seconds=0.5)
        assert len(stage.plane.endpoints[Slot.BLUE]) == 1
        assert stage.launcher.apart.get("blue/1") is None
        stage.look(ProcessState.READY, seconds=1.1)
        assert stage.launcher.apart["blue/1"] is ProcessState.DEAD
        stage.look(ProcessState.READY)
        assert self.roles(stage) == {"blue/0"}

    def test_a_change_of_mind_keeps_it(self, stage: Stage) -> None:
        self.serving(stage, 2)
        self.scale(stage, 1)
        stage.look(ProcessState.READY, seconds=0.5)
        self.scale(stage, 2)
        stage.look(ProcessState.READY, seconds=5.0)
        assert len(stage.plane.endpoints[Slot.BLUE]) == 2
        assert len(stage.launcher.started) == 2

    def test_nothing_else_serves_while_the_proxy_gets_to_know_the_stand_in(
        self, stage: Stage
    ) -> None:
        self.serving(stage, 1)
        (replica,) = stage.plane.endpoints[Slot.BLUE]
        stand_in = Endpoint(7, 8)
        deployment = stage.journal.deployment("shop")
        asleep = replace(
            deployment,
            settings=replace(deployment.settings, replicas=0, min_replicas=0, max_replicas=1),
        )
        live = stage.supervisor.live
        live.ensure(asleep, stand_in)
        assert set(stage.plane.endpoints[Slot.BLUE]) == {replica, stand_in}
        stage.clock.advance(2.0)
        live.ensure(asleep, stand_in)
        assert stage.plane.endpoints[Slot.BLUE] == (stand_in,)
        assert stage.launcher.apart.get("blue/0") is None
        for _ in range(2):
            stage.clock.advance(2.0)
            live.ensure(asleep, stand_in)
        assert self.roles(stage) == set()
