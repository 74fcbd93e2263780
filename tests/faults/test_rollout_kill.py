"""A daemon that dies at any point leaves the right traffic, and the next one the right end.

The first part crashes the controller at every single effect, on the real journal and the
twins, and again while resuming. The second part kills and stops real daemons.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bundle.clock import ManualClock
from rollout import deployments, places
from rollout.controller import Controller, Watch, World
from rollout.gates import Gate
from rollout.journal import Journal, StaleEpochError
from rollout.launcher import free_ports
from rollout.machine import Phase
from rollout.memory import MemoryLauncher, MemoryPlane
from rollout.model import Colour, Outcome, Ports, RolloutSpec, Settings
from tests.support.rollouts import (
    Load,
    daemon_of,
    kill_daemon,
    quick_settings,
    quick_spec,
    revision,
    story,
    wait_for_event,
)
from tests.support.wait import wait_until

EDGES = (100.0,)
SPEC = RolloutSpec(
    steps=(50, 100),
    step_seconds=2,
    min_requests=10,
    max_error_rate=0.05,
    warmup_seconds=0,
    bake_seconds=2,
)
EFFECTS = {
    "apply": "plane",
    "connect": "plane",
    "start": "launcher",
    "stop": "launcher",
    "save": "journal",
    "put_process": "journal",
    "drop_process": "journal",
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


@dataclass
class Fuse:
    """Burns down at each effect, before and after it, and kills at 0."""

    left: int
    points: int = 0

    def burn(self) -> None:
        self.points += 1
        self.left -= 1
        if self.left == 0:
            raise Killed


@dataclass
class Fragile:
    """Passes everything on to `target`; effects burn the fuse."""

    target: Any
    fuse: Fuse

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        return self._fused(value) if name in EFFECTS else value

    def _fused(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*args: Any, **kwargs: Any) -> Any:
            self.fuse.burn()
            result = effect(*args, **kwargs)
            self.fuse.burn()
            return result

        return fused


@dataclass
class Machine:
    """One machine on which daemons die and come back."""

    path: Path
    errors: int
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    plane: MemoryPlane = field(default_factory=lambda: MemoryPlane(EDGES))
    launcher: MemoryLauncher = field(default_factory=MemoryLauncher)

    def begin(self) -> None:
        with Journal(self.path, self.clock) as journal:
            journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
            journal.begin("shop", revision("tiny:bb"), SPEC)

    def watch(self, fuse: Fuse) -> bool:
        """Run a daemon until the rollout ended (True) or the fuse killed it (False)."""
        with Journal(self.path, self.clock) as journal:
            watch = Watch(
                journal.take_over("shop"), journal.deployment("shop").settings, lambda: True
            )
            plane, kept = Fragile(self.plane, fuse), Fragile(journal, fuse)
            world = World(plane, plane, Fragile(self.launcher, fuse), self.clock, EDGES)
            active = journal.active("shop")
            if active is None:
                return True
            try:
                controller = Controller(active, world, kept, watch)  # type: ignore[arg-type]
                if active.progress.phase is not Phase.PENDING:
                    controller.resume(1.0)
                for _ in range(100):
                    if controller.tick().phase is Phase.DONE:
                        return True
                    self.traffic()
            except Killed:
                return False
        raise AssertionError("the rollout does not end")

    def traffic(self) -> None:
        self.clock.advance(1.0)
        for colour, weight in self.plane.weights.items():
            bad = colour is Colour.GREEN and weight > 0
            self.plane.serve(colour, 2 * weight, errors=self.errors * bad)

    def check(self) -> None:
        with Journal(self.path, self.clock) as journal:
            (rollout,) = journal.rollouts("shop")
            deployment = journal.deployment("shop")
            ends = [event for event in journal.events("shop") if event.kind == "ended"]
        good = self.errors == 0
        assert rollout.outcome is (Outcome.PROMOTED if good else Outcome.ROLLED_BACK)
        assert self.plane.weights[Colour.GREEN] == (100 if good else 0)
        assert deployment.colour is (Colour.GREEN if good else Colour.BLUE)
        assert len(ends) == 1


@pytest.mark.parametrize("errors", [0, 40], ids=["good", "bad"])
def test_killed_at_every_effect_and_again_while_resuming(tmp_path: Path, errors: int) -> None:
    unharmed = Machine(tmp_path / "0.db", errors)
    unharmed.begin()
    fuse = Fuse(left=-1)
    assert unharmed.watch(fuse)
    unharmed.check()
    assert fuse.points > 20
    for point in range(1, fuse.points + 1):
        again = 1 + point % 4
        machine = Machine(tmp_path / f"{point}.db", errors)
        machine.begin()
        assert not machine.watch(Fuse(left=point))
        machine.watch(Fuse(left=again))
        assert machine.watch(Fuse(left=-1))
        machine.check()


def test_a_daemon_that_was_taken_over_cannot_write(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "0.db", errors=0)
    machine.begin()
    with Journal(machine.path, machine.clock) as former:
        watch = Watch(former.take_over("shop"), former.deployment("shop").settings, lambda: True)
        world = World(machine.plane, machine.plane, machine.launcher, machine.clock, EDGES)
        active = former.active("shop")
        assert active is not None
        controller = Controller(active, world, former, watch)
        with Journal(machine.path, machine.clock) as current:
            current.take_over("shop")
        with pytest.raises(StaleEpochError):
            controller.tick()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    yield "shop"
    deployments.down("shop")


def wait_for_phase(rollout: int, phase: Phase) -> None:
    wait_for_event("shop", rollout, lambda event: event.body.get("phase") == phase)


@pytest.mark.slow
def test_a_real_daemon_killed_at_two_phases(shop: str, port: int) -> None:
    with Load(port) as load:
        rollout = deployments.promote(shop, revision("tiny:bb"), quick_spec(step_seconds=0.3))
        for phase in (Phase.WARM, Phase.BAKE):
            wait_for_phase(rollout, phase)
            kill_daemon(shop)
            deployments.status()
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.failed == 0, load.answers


@pytest.mark.slow
def test_nobody_watched_for_too_long(shop: str, port: int) -> None:
    with Load(port) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=60.0)
        rollout = deployments.promote(shop, revision("tiny:bb"), spec)
        wait_for_phase(rollout, Phase.SHIFT)
        kill_daemon(shop)
        old = time.time() - 60.0
        os.utime(places.heartbeat(shop), (old, old))
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["verdict"]["gate"] == Gate.UNWATCHED
    assert load.failed == 0, load.answers


@pytest.mark.slow
def test_a_stopped_daemon_is_killed_before_another_takes_over(shop: str) -> None:
    former = daemon_of(shop)
    os.kill(former.pid, signal.SIGSTOP)
    heartbeat = places.heartbeat(shop)
    old = time.time() - 60.0
    wait_until(lambda: _aged(heartbeat, old))
    deployments.status(shop)
    wait_until(lambda: daemon_of(shop) != former)
    (status,) = deployments.status(shop)
    assert status.running["daemon"]


def _aged(heartbeat: Path, moment: float) -> bool:
    """Set the heartbeat back; true once it stays there, so the daemon really stands still."""
    before = heartbeat.stat().st_mtime
    os.utime(heartbeat, (moment, moment))
    return before == moment
