"""A rollout under any order of ticks, commands, deaths and takeovers, on the in-memory twins."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.domain.interfaces import DataPlaneRejected, ProcessState
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    OnInconclusive,
    Outcome,
    Ports,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.memory import MemoryDataPlane, MemoryLauncher, memory_world
from tests.support.rollouts import revision

EDGES = (100.0,)
STEPS = (10, 50, 100)
BLUE, GREEN = Slot.BLUE, Slot.GREEN
DEEDS = ("good", "bad", "silent", "died", "sick", "unseen", "taken over", "refused")
SPECS = st.builds(
    RolloutSpec,
    steps=st.just(STEPS),
    step_seconds=st.just(2.0),
    min_requests=st.just(10),
    max_error_rate=st.just(0.05),
    warmup_seconds=st.just(1.0),
    bake_seconds=st.just(3.0),
    deadline_seconds=st.sampled_from([20.0, 200.0]),
    on_inconclusive=st.sampled_from(OnInconclusive),
    mirror_percent=st.sampled_from([0, 5]),
)
EVENTS = st.lists(
    st.one_of(st.just("good"), st.sampled_from(DEEDS), st.sampled_from(OperatorCommand)),
    max_size=30,
)


@dataclass
class Stage:
    """A rollout whose daemon may be replaced; every step ends with the invariants."""

    journal: Journal
    clock: ManualClock
    spec: RolloutSpec
    can_mirror: bool
    launcher: MemoryLauncher = field(default_factory=MemoryLauncher)

    def __post_init__(self) -> None:
        self.data_plane = MemoryDataPlane(EDGES, can_mirror=self.can_mirror)
        self.journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
        self.id = self.journal.begin("shop", revision("tiny:bb"), self.spec)
        self.take_over()

    @property
    def phase(self) -> RolloutPhase:
        return self.journal.rollout(self.id).progress.phase

    @property
    def expired(self) -> bool:
        return self.journal.rollout(self.id).progress.ruling is not None

    def take_over(self, unseen: float | None = None) -> None:
        world = memory_world(self.journal, self.data_plane, self.clock, self.launcher)
        rollout = self.journal.rollout(self.id)
        self.controller = Controller(rollout, world)
        if unseen is not None and self.phase not in (RolloutPhase.PENDING, RolloutPhase.DONE):
            self.controller.resume(unseen)

    def do(self, what: str) -> None:
        if isinstance(what, OperatorCommand):
            with contextlib.suppress(MlctlError):  # a command that nothing can obey is refused
                self.journal.request("shop", what, "by hand")
        elif what in ("unseen", "taken over"):
            self.clock.advance(60.0 if what == "unseen" else 2.0)
            self.take_over(60.0 if what == "unseen" else 2.0)
        else:
            self.observe(what)
        self.check()

    def observe(self, what: str) -> None:
        self.clock.advance(1.0)
        for slot, weight in self.data_plane.weights.items():
            bad = slot is GREEN and what == "bad" and weight > 0
            self.data_plane.serve(slot, 0 if what == "silent" else 2 * weight, errors=weight * bad)
        self.data_plane.healthy[GREEN] = what != "sick"
        self.data_plane.rejects = what == "refused"
        if what == "died" and GREEN in self.launcher.probes:
            self.launcher.probes[GREEN] = ProcessState.DEAD
        with contextlib.suppress(DataPlaneRejected):
            self.controller.tick()
        self.data_plane.rejects = False

    def check(self) -> None:
        rollout, data_plane = self.journal.rollout(self.id), self.data_plane
        if not data_plane.weights:
            return
        deployment = self.journal.deployment("shop")
        assert sum(data_plane.weights.values()) == 100
        assert data_plane.weights[GREEN] in (0, *STEPS)
        assert deployment.live == (rollout.live if deployment.slot is BLUE else rollout.candidate)
        proved = rollout.progress.planned is Outcome.PROMOTED
        assert (deployment.slot is GREEN) == proved
        for slot, weight in data_plane.weights.items():
            assert weight == 0 or data_plane.endpoints.get(slot) != (), f"{slot} has no endpoint"
        if not proved:
            assert self.launcher.probes.get(BLUE) is not ProcessState.DEAD
        ends = [one for one in self.journal.events("shop", rollout=self.id) if one.kind == "ended"]
        assert len(ends) == (rollout.outcome is not None)
        if rollout.outcome is not None:
            assert data_plane.weights[GREEN] == (100 if rollout.outcome is Outcome.PROMOTED else 0)
            assert deployment.slot is (GREEN if rollout.outcome is Outcome.PROMOTED else BLUE)

    def refuses_a_second(self) -> None:
        with pytest.raises(MlctlError) as refused:
            self.journal.begin("shop", revision("tiny:cc"), self.spec)
        assert refused.value.code is ErrorCode.ROLLOUT_ACTIVE


@pytest.mark.slow
@given(spec=SPECS, can_mirror=st.booleans(), events=EVENTS)
@settings(max_examples=50, deadline=None)
def test_rollout__events_in_any_order__traffic_ends_as_recorded(
    spec: RolloutSpec, can_mirror: bool, events: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        clock = ManualClock(1000.0)
        with Journal(Path(folder, "journal.db"), clock) as journal:
            journal._db.execute("pragma synchronous = off")  # no machine loses power here
            stage = Stage(journal, clock, spec, can_mirror)
            for what in events:
                if stage.phase is RolloutPhase.DONE:
                    break
                stage.refuses_a_second()
                stage.do(what)
            for _ in range(300):
                if stage.phase is RolloutPhase.DONE:
                    break
                if stage.phase is RolloutPhase.PAUSED:
                    # What nobody can prove, as copies that nobody compares, would pause for ever.
                    stage.do(OperatorCommand.ROLLBACK if stage.expired else OperatorCommand.RESUME)
                stage.do("good")
            outcome = journal.rollout(stage.id).outcome
            event(f"outcome {outcome}")
            assert outcome is not None
