"""A rollout played on the in-memory twins, for whatever reads the journal afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import DeploymentSettings, Ports, RolloutSpec, Slot
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.memory import MemoryDataPlane, memory_world
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
class Played:
    """The deployment `shop` with one rollout, moved on by `tick`."""

    journal: Journal
    clock: ManualClock
    settings: DeploymentSettings = field(default_factory=DeploymentSettings)
    spec: RolloutSpec = SPEC
    data_plane: MemoryDataPlane = field(default_factory=lambda: MemoryDataPlane(EDGES))

    def __post_init__(self) -> None:
        self.journal.create("shop", Ports(8000, 2), self.settings, revision("tiny:aa"))
        self.begin("tiny:bb")

    def begin(self, tag: str) -> int:
        """Ask for another rollout; its id."""
        rollout = self.journal.begin("shop", revision(tag), self.spec)
        world = memory_world(self.journal, self.data_plane, self.clock)
        self.controller = Controller(self.journal.rollout(rollout), world)
        return rollout

    def tick(self, times: int = 1, *, errors: int = 0, requests: int = 200) -> None:
        """Looks of one second each; of the candidate's requests `errors` fail."""
        for _ in range(times):
            self.clock.advance(1.0)
            for slot, weight in self.data_plane.weights.items():
                n = requests * weight // 100
                bad = errors if slot is Slot.GREEN and n else 0
                self.data_plane.serve(slot, n, errors=bad)
            self.controller.tick()

    def until(self, phase: RolloutPhase, *, errors: int = 0, requests: int = 200) -> None:
        """Tick until the rollout is in `phase`; AssertionError if it never comes there."""
        for _ in range(300):
            if self.controller.progress.phase is phase:
                return
            self.tick(errors=errors, requests=requests)
        raise AssertionError(f"{phase} was not reached: {self.controller.progress}")
