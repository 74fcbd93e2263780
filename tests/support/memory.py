"""In-memory plane, launcher and registry, for tests of the controller without any process."""

from __future__ import annotations

from dataclasses import dataclass, field

from bundle.errors import ErrorCode, MlctlError
from rollout.domain.counts import Reading, Totals
from rollout.domain.ports import PlaneRejected, Probe, Served, Traffic
from rollout.domain.process_ref import ProcessRef
from rollout.domain.spec import Colour, Endpoint, Revision, replica_role


@dataclass
class MemoryPlane:
    """A data plane and meter whose traffic the test writes with `serve`."""

    edges: tuple[float, ...]
    weights: dict[Colour, int] = field(default_factory=dict)
    endpoints: dict[Colour, tuple[Endpoint, ...]] = field(default_factory=dict)
    totals: dict[Colour, Totals] = field(default_factory=dict)
    healthy: dict[Colour, bool] = field(default_factory=lambda: dict.fromkeys(Colour, True))
    active: dict[Colour, int] = field(default_factory=lambda: dict.fromkeys(Colour, 0))
    history: list[int] = field(default_factory=list)
    rejects: bool = False
    can_mirror: bool = True
    traffic: Traffic | None = None
    shadow: dict[Colour, Totals] = field(default_factory=dict)

    def apply(self, traffic: Traffic) -> None:
        if self.rejects:
            raise PlaneRejected("the configuration was refused")
        if traffic.mirror and not self.can_mirror:
            raise PlaneRejected("this data plane cannot copy requests")
        self.traffic = traffic
        if dict(traffic.weights) != self.weights:
            self.weights = dict(traffic.weights)
            self.history.append(traffic.weights[Colour.GREEN])

    def connect(self, colour: Colour, endpoints: tuple[Endpoint, ...]) -> None:
        self.endpoints[colour] = endpoints

    def serve(
        self,
        colour: Colour,
        n: int,
        *,
        errors: int = 0,
        slow: int = 0,
        client_errors: int = 0,
        abandoned: int = 0,
    ) -> None:
        """Count `n` answers: `slow` of them beyond every edge, the others within the first."""
        within = (n - slow,) * len(self.edges)
        before = self.totals.get(colour, self._nothing())
        self.totals[colour] = before.plus(Totals(n, errors, n, within, client_errors, abandoned))

    def read(self) -> Reading:
        totals = {colour: self.totals.get(colour, self._nothing()) for colour in Colour}
        shadow = {colour: self.shadow.get(colour, self._nothing()) for colour in Colour}
        return Reading(totals, dict(self.healthy), dict(self.active), shadow)

    def _nothing(self) -> Totals:
        return Totals(within=(0,) * len(self.edges))


@dataclass
class MemoryLauncher:
    """A launcher whose processes are entries of a dictionary."""

    probes: dict[Colour, Probe] = field(default_factory=dict)
    started: list[tuple[Colour, Revision]] = field(default_factory=list)
    colours: dict[str, Colour] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    apart: dict[str, Probe] = field(default_factory=dict)

    def start(self, colour: Colour, revision: Revision, index: int = 0) -> Served:
        self.started.append((colour, revision))
        token = f"{colour}#{len(self.started)}"
        self.colours[token] = colour
        self.roles[token] = replica_role(colour, index)
        self.apart.pop(self.roles[token], None)
        self.probes.setdefault(colour, Probe.READY)
        number = len(self.started)
        return Served(
            revision, Endpoint(number, number + 1), ProcessRef(number, 0.0, token), "/dev/null"
        )

    def probe(self, served: Served) -> Probe:
        """What `apart` says of this replica ("blue/1"), or else `probes` of its colour."""
        if (told := self.apart.get(self.roles[served.process.token])) is not None:
            return told
        return self.probes[self.colours[served.process.token]]

    def stop(self, served: Served, *, force: bool = False) -> None:
        del force
        role = self.roles[served.process.token]
        if role.endswith("/0"):
            self.probes[self.colours[served.process.token]] = Probe.DEAD
        self.apart[role] = Probe.DEAD


@dataclass
class MemoryChampions:
    """A registry that remembers the champions, and fails the first `failures` times."""

    failures: int = 0
    written: list[Revision] = field(default_factory=list)
    prepared: bool = False

    def prepare(self) -> None:
        self.prepared = True

    def dismiss(self) -> None:
        self.prepared = False

    def write_champion(self, revision: Revision) -> None:
        if self.failures:
            self.failures -= 1
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, "the registry does not answer")
        self.written.append(revision)
