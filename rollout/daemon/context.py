"""What the parts of a daemon act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlctl.core.clock import Clock
from mlctl.rollout.daemon.recording import Recording
from mlctl.rollout.domain.interfaces import DataPlane, Launcher, Meter
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.domain.traffic.traffic_record import TrafficRecord
from mlctl.rollout.drivers.local.fleet import Fleet
from mlctl.rollout.journal.journal import Journal


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """The deployment `name`, as its daemon with `epoch` reads and changes it.

    `edges` are the meter's latency edges in milliseconds; `recording` is what the servers record
    of their answers, None where they cannot; `record` is the live slot's traffic before a rollout.
    """

    name: str
    epoch: int
    journal: Journal
    settings: DeploymentSettings
    data_plane: DataPlane
    meter: Meter
    launcher: Launcher
    clock: Clock
    edges: tuple[float, ...]
    recording: Recording | None = None
    record: TrafficRecord = field(default_factory=TrafficRecord)

    @property
    def fleet(self) -> Fleet:
        """The replicas of both slots."""
        return Fleet(self.name, self.launcher, self.journal)

    def now(self) -> float:
        """Return the wall-clock time in seconds."""
        return self.clock.wall()

    def append(self, kind: str, body: dict[str, Any], rollout: int | None = None) -> None:
        """Record an event; StaleEpochError once another daemon has taken over."""
        self.journal.append(self.name, rollout, kind, body, self.epoch)
