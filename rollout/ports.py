"""The seams of a rollout: what carries traffic, counts it and runs the processes.

Each has a driver (`envoy`, `launcher`) and an in-memory twin (`memory`). A driver raises
`PlaneUnavailable` when it cannot be asked now (the look is skipped), `PlaneRejected` when it
refused what it was told (the rollout is taken back).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rollout.counts import Reading
from rollout.model import Colour, Endpoint, Revision
from rollout.processes import ProcessRef


class PlaneUnavailable(Exception):  # noqa: N818 - it says a state, not a fault of ours
    """The data plane did not answer; nothing is known, nothing was changed for sure."""


class PlaneRejected(Exception):  # noqa: N818 - as above
    """The data plane refused a configuration."""


class DataPlane(Protocol):
    """What carries the traffic."""

    def apply(self, weights: Mapping[Colour, int]) -> None:
        """Make the weights (percent, sum 100) hold and wait until they do. Idempotent."""
        ...

    def connect(self, colour: Colour, endpoint: Endpoint | None) -> None:
        """Send `colour`'s share to `endpoint`, or to the other colour if None. Idempotent."""
        ...


class Meter(Protocol):
    """What counts the traffic."""

    def read(self) -> Reading: ...


class Probe(StrEnum):
    """A process as its launcher finds it."""

    STARTING = "starting"
    READY = "ready"
    WRONG_MODEL = "wrong_model"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Served:
    """A revision's running process, where it listens and where it logs."""

    revision: Revision
    endpoint: Endpoint
    process: ProcessRef
    log: str


class Launcher(Protocol):
    """What runs Bentos."""

    def start(self, colour: Colour, revision: Revision) -> Served:
        """Start serving and return at once; strays of an earlier start are ended first."""
        ...

    def probe(self, served: Served) -> Probe: ...

    def stop(self, served: Served, *, force: bool = False) -> None:
        """Ask it to finish, or end it at once. Idempotent; does not wait."""
        ...


class ChampionWriter(Protocol):
    """What writes the live revision back to the registry; MlctlError when it cannot."""

    def write_champion(self, revision: Revision) -> None: ...
