"""In-memory twins of the seams, for tests of the controller without any process or proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bundle.errors import ErrorCode, MlctlError
from rollout.counts import Reading, Totals
from rollout.model import Colour, Endpoint, Revision
from rollout.ports import PlaneRejected, Probe, Served
from rollout.processes import ProcessRef


@dataclass
class MemoryPlane:
    """A data plane and meter whose traffic the test writes with `serve`."""

    edges: tuple[float, ...]
    weights: dict[Colour, int] = field(default_factory=dict)
    endpoints: dict[Colour, Endpoint | None] = field(default_factory=dict)
    totals: dict[Colour, Totals] = field(default_factory=dict)
    healthy: dict[Colour, bool] = field(default_factory=lambda: dict.fromkeys(Colour, True))
    active: dict[Colour, int] = field(default_factory=lambda: dict.fromkeys(Colour, 0))
    history: list[int] = field(default_factory=list)
    rejects: bool = False

    def apply(self, weights: Mapping[Colour, int]) -> None:
        if self.rejects:
            raise PlaneRejected("the configuration was refused")
        if dict(weights) != self.weights:
            self.weights = dict(weights)
            self.history.append(weights[Colour.GREEN])

    def connect(self, colour: Colour, endpoint: Endpoint | None) -> None:
        self.endpoints[colour] = endpoint

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
        return Reading(totals, dict(self.healthy), dict(self.active))

    def _nothing(self) -> Totals:
        return Totals(within=(0,) * len(self.edges))


@dataclass
class MemoryLauncher:
    """A launcher whose processes are entries of a dictionary."""

    probes: dict[Colour, Probe] = field(default_factory=dict)
    started: list[tuple[Colour, Revision]] = field(default_factory=list)
    colours: dict[str, Colour] = field(default_factory=dict)

    def start(self, colour: Colour, revision: Revision) -> Served:
        self.started.append((colour, revision))
        token = f"{colour}#{len(self.started)}"
        self.colours[token] = colour
        self.probes.setdefault(colour, Probe.READY)
        number = len(self.started)
        return Served(
            revision, Endpoint(number, number + 1), ProcessRef(number, 0.0, token), "/dev/null"
        )

    def probe(self, served: Served) -> Probe:
        return self.probes[self.colours[served.process.token]]

    def stop(self, served: Served, *, force: bool = False) -> None:
        del force
        self.probes[self.colours[served.process.token]] = Probe.DEAD


@dataclass
class MemoryChampions:
    """A registry that remembers the champions, and fails the first `failures` times."""

    failures: int = 0
    written: list[Revision] = field(default_factory=list)

    def write_champion(self, revision: Revision) -> None:
        if self.failures:
            self.failures -= 1
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, "the registry does not answer")
        self.written.append(revision)
