"""In-memory data plane and launcher, for tests of the controller without any process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mlctl.core.clock import Clock
from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.recording import Recording
from mlctl.rollout.domain.interfaces import (
    DataPlaneRejected,
    ProcessState,
    RunningRevision,
    TrafficSplit,
)
from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import Endpoint, Revision, Slot, replica_role
from mlctl.rollout.domain.traffic.counts import AnswerTimes, Reading, Totals
from mlctl.rollout.journal.journal import Journal


@dataclass
class MemoryDataPlane:
    """A data plane and meter whose traffic the test writes with `serve`."""

    edges: tuple[float, ...]
    weights: dict[Slot, int] = field(default_factory=dict)
    endpoints: dict[Slot, tuple[Endpoint, ...]] = field(default_factory=dict)
    totals: dict[Slot, Totals] = field(default_factory=dict)
    healthy: dict[Slot, bool] = field(default_factory=lambda: dict.fromkeys(Slot, True))
    active: dict[Slot, int] = field(default_factory=lambda: dict.fromkeys(Slot, 0))
    history: list[int] = field(default_factory=list)
    rejects: bool = False
    can_mirror: bool = True
    traffic: TrafficSplit | None = None
    shadow: dict[Slot, Totals] = field(default_factory=dict)
    answers: dict[Slot, AnswerTimes] = field(default_factory=dict)

    def apply(self, traffic: TrafficSplit) -> None:
        if self.rejects:
            raise DataPlaneRejected("the configuration was refused")
        if traffic.mirror and not self.can_mirror:
            raise DataPlaneRejected("this data plane cannot copy requests")
        self.traffic = traffic
        if dict(traffic.weights) != self.weights:
            self.weights = dict(traffic.weights)
            self.history.append(traffic.weights[Slot.GREEN])

    def connect(self, slot: Slot, endpoints: tuple[Endpoint, ...]) -> None:
        self.endpoints[slot] = endpoints

    def serve(
        self,
        slot: Slot,
        n: int,
        *,
        errors: int = 0,
        slow: int = 0,
        client_errors: int = 0,
        abandoned: int = 0,
    ) -> None:
        """Count `n` answers: `slow` of them beyond every edge, the others within the first."""
        within = (n - slow,) * len(self.edges)
        before = self.totals.get(slot, self._nothing())
        self.totals[slot] = before.plus(Totals(n, errors, n, within, client_errors, abandoned))

    def read(self) -> Reading:
        totals = {slot: self.totals.get(slot, self._nothing()) for slot in Slot}
        shadow = {slot: self.shadow.get(slot, self._nothing()) for slot in Slot}
        return Reading(totals, dict(self.healthy), dict(self.active), shadow, dict(self.answers))

    def _nothing(self) -> Totals:
        return Totals(within=(0,) * len(self.edges))


@dataclass
class MemoryLauncher:
    """A launcher whose processes are entries of a dictionary."""

    probes: dict[Slot, ProcessState] = field(default_factory=dict)
    started: list[tuple[Slot, Revision]] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    apart: dict[str, ProcessState] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    now: Callable[[], float] = lambda: 0.0

    def start(self, slot: Slot, revision: Revision, index: int = 0) -> RunningRevision:
        self.started.append((slot, revision))
        token = f"{slot}#{len(self.started)}"
        self.slots[token] = slot
        self.roles[token] = replica_role(slot, index)
        self.apart.pop(self.roles[token], None)
        self.probes.setdefault(slot, ProcessState.READY)
        number = len(self.started)
        process = ProcessRef(number, self.now(), token)
        return RunningRevision(revision, Endpoint(number, number + 1), process, "/dev/null")

    def probe(self, served: RunningRevision) -> ProcessState:
        """What `apart` says of this replica ("blue/1"), or else `probes` of its slot."""
        if (told := self.apart.get(self.roles[served.process.token])) is not None:
            return told
        return self.probes[self.slots[served.process.token]]

    def stop(self, served: RunningRevision, *, force: bool = False) -> None:
        role = self.roles[served.process.token]
        if force:
            self.killed.append(role)
        if role.endswith("/0"):
            self.probes[self.slots[served.process.token]] = ProcessState.DEAD
        self.apart[role] = ProcessState.DEAD


def memory_world(
    journal: Journal,
    data_plane: MemoryDataPlane,
    clock: Clock,
    launcher: MemoryLauncher | None = None,
    recording: Recording | None = None,
) -> DaemonContext:
    """Return what a new daemon of the deployment `shop` acts on."""
    return DaemonContext(
        "shop",
        journal.take_over("shop"),
        journal,
        journal.deployment("shop").settings,
        data_plane,
        data_plane,
        launcher or MemoryLauncher(),
        clock,
        data_plane.edges,
        recording,
    )
