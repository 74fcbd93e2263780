"""What the supervisor does about the live Bento; a process of the test stands for Envoy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.clock import ManualClock
from rollout import processes
from rollout.controller import World
from rollout.envoy import EnvoyFiles
from rollout.journal import Journal
from rollout.memory import MemoryLauncher, MemoryPlane
from rollout.model import Colour, Ports, Settings
from rollout.ports import Probe
from rollout.supervisor import ENVOY, Supervisor
from tests.support.rollouts import revision


class Stage:
    def __init__(self, journal: Journal, clock: ManualClock, directory: Path) -> None:
        ports = Ports(1, 2)
        journal.create("shop", ports, Settings(ready_seconds=10), revision("tiny:aa"))
        self.journal, self.clock = journal, clock
        self.plane, self.launcher = MemoryPlane((100.0,)), MemoryLauncher()
        self.launcher.probes[Colour.BLUE] = Probe.STARTING
        argv = [sys.executable, "-c", "import time; time.sleep(60)"]
        journal.put_process("shop", ENVOY, processes.spawn(str(directory), argv, directory / "log"))
        world = World(self.plane, self.plane, self.launcher, clock, (100.0,))
        files = EnvoyFiles(directory, ports)
        self._files, self._directory, self._world = files, directory, world
        self.supervisor = self.take_over()

    def take_over(self) -> Supervisor:
        epoch = self.journal.take_over("shop")
        return Supervisor(self._directory, self._files, self._world, self.journal, epoch)

    def look(self, probe: Probe, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.launcher.probes[Colour.BLUE] = probe
        self.supervisor.ensure(self.journal.deployment("shop"))

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.journal.events("shop") if event.kind != "up"]


@pytest.fixture
def stage(journal: Journal, clock: ManualClock, tmp_path: Path) -> Iterator[Stage]:
    yield Stage(journal, clock, tmp_path)
    processes.end_strays(str(tmp_path))


def test_ready_is_told_once_when_the_proxy_agrees(stage: Stage) -> None:
    stage.look(Probe.STARTING)
    stage.plane.healthy[Colour.BLUE] = False
    stage.look(Probe.READY)
    assert not stage.supervisor.serving
    stage.plane.healthy[Colour.BLUE] = True
    stage.look(Probe.READY)
    stage.look(Probe.READY)
    assert stage.kinds == ["ready"]
    assert stage.plane.endpoints[Colour.BLUE] is not None


@pytest.mark.parametrize("probe", [Probe.DEAD, Probe.WRONG_MODEL])
def test_a_bento_that_fails_to_start_is_told_and_tried_again(stage: Stage, probe: Probe) -> None:
    stage.look(Probe.STARTING)
    stage.look(probe)
    assert stage.kinds == ["start_failed"]
    assert len(stage.launcher.started) == 1
    stage.look(Probe.STARTING, seconds=0.5)
    assert len(stage.launcher.started) == 1
    stage.look(Probe.STARTING, seconds=1.0)
    assert len(stage.launcher.started) == 2


def test_a_bento_that_is_not_ready_in_time_fails(stage: Stage) -> None:
    stage.look(Probe.STARTING)
    stage.look(Probe.STARTING, seconds=9.0)
    assert stage.kinds == []
    stage.look(Probe.STARTING, seconds=2.0)
    assert stage.kinds == ["start_failed"]


def test_another_daemon_gives_a_starting_bento_its_time(stage: Stage) -> None:
    stage.look(Probe.STARTING)
    stage.clock.advance(60.0)
    stage.supervisor = stage.take_over()
    stage.look(Probe.STARTING)
    assert stage.kinds == []


def test_a_bento_that_dies_later_is_restarted(stage: Stage) -> None:
    stage.look(Probe.STARTING)
    stage.look(Probe.READY)
    stage.look(Probe.DEAD)
    stage.look(Probe.STARTING, seconds=2.0)
    stage.look(Probe.READY)
    assert stage.kinds == ["ready", "restarted", "ready"]


def test_pauses_grow_while_it_keeps_failing(stage: Stage) -> None:
    waits = []
    for _ in range(4):
        started, waited = len(stage.launcher.started), 0
        while len(stage.launcher.started) == started:
            stage.look(Probe.STARTING, seconds=0.5)
            waited += 1
        waits.append(waited)
        stage.look(Probe.DEAD, seconds=0.0)
    assert waits[1:] == sorted(set(waits[1:]))
