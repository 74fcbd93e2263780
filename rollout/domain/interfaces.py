"""The seams of a rollout: what carries traffic, counts it and runs the processes.

Each has a driver for this machine (`drivers.envoy`, `drivers.local`) and one for a cluster
(`kubernetes`). A driver raises `DataPlaneUnavailable` if it does not answer now (the evaluation is
skipped) and `DataPlaneRejected` if it rejects a configuration (the rollout is rolled back).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from pydantic import field_validator, model_validator
from pydantic.dataclasses import dataclass as checked

from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import Endpoint, Percent, Revision, Slot
from mlctl.rollout.domain.traffic.counts import Reading

TOTAL_WEIGHT = 100


class DataPlaneUnavailable(Exception):  # noqa: N818 - it says a state, not a fault of ours
    """The data plane did not answer; a change may or may not have taken effect."""


class DataPlaneRejected(Exception):  # noqa: N818 - as above
    """The data plane rejected a configuration."""


@checked(frozen=True, slots=True)
class TrafficSplit:
    """How the requests are shared out; ValueError if it cannot be.

    Attributes:
        weights: percent of the requests per slot, sum 100.
        mirror: percent of the requests that are copied to `mirror_to` as well; the answers to
            the copies are thrown away, and they are counted apart.
        mirror_to: the slot that gets the copies; None for no copies.
        testers: the slot that requests marked as a tester's reach, whatever its weight; they
            are counted apart. None while the mark means nothing.
        sticky: a client keeps its slot while the weights allow it.
    """

    weights: Mapping[Slot, Percent]
    mirror: Percent = 0
    mirror_to: Slot | None = None
    testers: Slot | None = None
    sticky: bool = False

    @field_validator("weights")
    @classmethod
    def _both(cls, weights: Mapping[Slot, int]) -> Mapping[Slot, int]:
        both = {slot: weights.get(slot, 0) for slot in Slot}
        if sum(both.values()) != TOTAL_WEIGHT:
            raise ValueError(f"weights must sum to {TOTAL_WEIGHT}: {dict(weights)}")
        return both

    @model_validator(mode="after")
    def _mirrored(self) -> Self:
        if self.mirror and self.mirror_to is None:
            raise ValueError(f"{self.mirror} % cannot be copied to no slot")
        return self


class DataPlane(Protocol):
    """What carries the traffic. `can_mirror` says whether `TrafficSplit.mirror` is possible."""

    @property
    def can_mirror(self) -> bool: ...

    def apply(self, traffic: TrafficSplit) -> None:
        """Make `traffic` hold and wait until it does. Idempotent; DataPlaneRejected for a mirror
        where there is none.
        """
        ...

    def connect(self, slot: Slot, endpoints: tuple[Endpoint, ...]) -> None:
        """Send `slot`'s share to its replicas, or to the other slot if none. Idempotent."""
        ...


class Meter(Protocol):
    """What counts the traffic."""

    def read(self) -> Reading: ...


class MeteredDataPlane(DataPlane, Meter, Protocol):
    """A proxy that runs: it carries the traffic and counts it."""

    def weights(self) -> dict[Slot, int] | None:
        """The weights in force; None while the proxy has none yet."""
        ...


class Proxy(Protocol):
    """The proxy of one deployment: its files, how it is run, and a way to reach it."""

    def command(self) -> list[str]:
        """How it is run; RUNTIME_MISSING if it is not installed."""
        ...

    def prepare(self, live: Slot) -> None:
        """Write what it needs to start; the traffic and the endpoints that exist are kept."""
        ...

    def reset(self) -> None:
        """Forget the traffic and the endpoints of an earlier deployment of that name."""
        ...

    def data_plane(self) -> AbstractContextManager[MeteredDataPlane]:
        """Return its data plane; it need not run yet."""
        ...


class ProcessState(StrEnum):
    """A process as its launcher finds it."""

    STARTING = "starting"
    READY = "ready"
    WRONG_MODEL = "wrong_model"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class RunningRevision:
    """A revision's running process, where it listens and where it logs."""

    revision: Revision
    endpoint: Endpoint
    process: ProcessRef
    log: str


class Launcher(Protocol):
    """What runs Bentos."""

    def start(self, slot: Slot, revision: Revision, index: int = 0) -> RunningRevision:
        """Start a replica and return at once; strays of an earlier start are ended first."""
        ...

    def probe(self, served: RunningRevision) -> ProcessState: ...

    def stop(self, served: RunningRevision, *, force: bool = False) -> None:
        """Terminate it, or kill it with `force`. Idempotent; does not wait."""
        ...
