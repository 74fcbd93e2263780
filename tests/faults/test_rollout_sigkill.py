"""A daemon killed by SIGKILL at every point of a rollout, and again while the next one resumes.

Each daemon is a process of its own on a real journal, with the twins' state in a file. The
points are those that an unharmed run passes: before each effect, and before each
statement that writes. Whatever was killed, the end is that of the unharmed run.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec, Slot
from mlctl.rollout.journal.journal import Journal
from tests.support.disk_world import EDGES, DiskWorld, Fragile, Points
from tests.support.forked import run_apart, run_forked
from tests.support.rollouts import revision

SPEC = RolloutSpec(
    steps=(50, 100),
    step_seconds=2,
    min_requests=10,
    max_error_rate=0.05,
    warmup_seconds=0,
    bake_seconds=2,
)
NO_COPIES_YET = RolloutSpec(shadow_percent=10, bake_seconds=1)


@dataclass(frozen=True)
class Story:
    """A candidate with `errors` of 100 requests; in a phase an operator asks for something."""

    outcome: Outcome
    errors: int = 0
    spec: RolloutSpec = SPEC
    commands: Mapping[RolloutPhase, OperatorCommand] = field(default_factory=dict)


STORIES = {
    "good": Story(Outcome.PROMOTED),
    "bad": Story(Outcome.ROLLED_BACK, errors=80),
    "paused": Story(
        Outcome.PROMOTED,
        commands={
            RolloutPhase.SHIFT: OperatorCommand.PAUSE,
            RolloutPhase.PAUSED: OperatorCommand.RESUME,
        },
    ),
    "rolled_back_by_hand": Story(
        Outcome.ROLLED_BACK, commands={RolloutPhase.BAKE: OperatorCommand.ROLLBACK}
    ),
    "full": Story(
        Outcome.PROMOTED, spec=NO_COPIES_YET, commands={RolloutPhase.SHADOW: OperatorCommand.FULL}
    ),
}


@dataclass(frozen=True)
class End:
    """What matters after a rollout."""

    outcome: Outcome | None
    weights: Mapping[Slot, int]
    live: Slot
    terminal_events: int
    started: int


@dataclass
class Machine:
    """One machine on which daemons die and come back."""

    folder: Path
    story: Story

    def begin(self) -> None:
        self.folder.mkdir()
        world = self._world()
        with self._journal(world) as journal:
            journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
            journal.begin("shop", revision("tiny:bb"), self.story.spec)
        world.write()

    def copy(self, folder: Path) -> Machine:
        """Another machine in the same state."""
        shutil.copytree(self.folder, folder)
        return Machine(folder, self.story)

    def run(self, points: Points) -> int:
        """Be a daemon until the rollout has ended."""
        world = self._world()
        with self._journal(world) as opened:
            points.watch_sql(opened)
            data_plane, launcher, journal = (
                Fragile(part, points, world.write)
                for part in (world.data_plane, world.launcher, opened)
            )
            settings = opened.deployment("shop").settings
            epoch = opened.take_over("shop")
            active = opened.active("shop")
            if active is None:
                return 0
            around = DaemonContext(
                "shop",
                epoch,
                journal,  # type: ignore[arg-type]
                settings,
                data_plane,
                data_plane,
                launcher,
                world,
                EDGES,
            )
            controller = Controller(active, around)
            if active.progress.phase is not RolloutPhase.PENDING:
                controller.resume(1.0)
            for _ in range(200):
                if controller.tick().phase is RolloutPhase.DONE:
                    return 0
                self._ask(journal, controller.progress.phase)
                self._traffic(world)
        return 1

    def end(self) -> End:
        world = self._world()
        with self._journal(world) as journal:
            (rollout,) = journal.rollouts("shop")
            ends = [event for event in journal.events("shop") if event.kind == "ended"]
            live = journal.deployment("shop").slot
        started = len(world.launcher.started)
        return End(rollout.outcome, world.data_plane.weights, live, len(ends), min(started, 1))

    def _ask(self, journal: Fragile, phase: RolloutPhase) -> None:
        command = self.story.commands.get(phase)
        (rollout,) = journal.rollouts("shop")
        if command is not None and command not in {r.command for r in journal.requests(rollout.id)}:
            journal.request("shop", command, "by hand")

    def _traffic(self, world: DiskWorld) -> None:
        world.now += 1.0
        for slot, weight in world.data_plane.weights.items():
            bad = slot is Slot.GREEN and weight > 0
            world.data_plane.serve(slot, 2 * weight, errors=self.story.errors * bad)
        world.write()

    def _world(self) -> DiskWorld:
        return DiskWorld(self.folder / "world.json")

    def _journal(self, world: DiskWorld) -> Journal:
        return Journal(self.folder / "journal.db", world)


def in_child(machine: Machine, kill_at: int) -> int:
    """Run a daemon in a forked process, to be killed at a point; its wait status."""
    return run_forked(lambda: machine.run(Points(kill_at)))


def killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def unharmed(folder: Path, name: str) -> tuple[Machine, list[str], End]:
    """A machine at the story's start, the points of an unharmed run, and its end."""
    begun = Machine(folder / "begun", STORIES[name])
    begun.begin()
    machine, points = begun.copy(folder / "unharmed"), Points()
    assert machine.run(points) == 0
    assert {"before apply", "before save", "sql commit"} <= set(points.passed)
    return begun, points.passed, machine.end()


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_rollout__daemon_killed_at_every_point_and_while_it_resumes__ends_as_unharmed(
    tmp_path: Path, name: str
) -> None:
    run_apart(kill_at_every_point, tmp_path, name)


def kill_at_every_point(folder: str, name: str) -> None:
    path = Path(folder)
    begun, points, expected = unharmed(path, name)
    assert (expected.outcome, expected.terminal_events) == (STORIES[name].outcome, 1), expected
    # A story begins as the good one does; those points are tested once, there.
    first = 0
    if name != "good":
        (path / "good").mkdir()
        _, others, _ = unharmed(path / "good", "good")
        same = [mine == other for mine, other in zip(points, others, strict=False)]
        first = same.index(False)
    for point, label in enumerate(points[first:], start=first + 1):
        machine = begun.copy(path / str(point))
        assert killed(in_child(machine, point)), label
        in_child(machine, 1 + point % 9)
        assert machine.run(Points()) == 0, label
        assert machine.end() == expected, (label, machine.end())
