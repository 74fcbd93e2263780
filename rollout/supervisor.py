"""Keeps a deployment's Envoy and live Bento running, and tells when it serves.

What died is started again, after a pause that doubles with each failure in a row. The live
Bento gets new ports each time; the endpoint files tell Envoy, which itself is not restarted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout import processes, records
from rollout.controller import World
from rollout.envoy import EnvoyFiles, envoy_command
from rollout.journal import Journal
from rollout.launcher import process_role
from rollout.ports import PlaneUnavailable, Probe, Served
from rollout.records import Deployment

ENVOY = "envoy"
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


@dataclass
class _Restarts:
    """When something may be started again."""

    not_before: float = 0.0
    pause: float = _FIRST_PAUSE

    def failed(self, now: float) -> None:
        self.not_before = now + self.pause
        self.pause = min(self.pause * 2, _LONGEST_PAUSE)

    def works(self) -> None:
        self.pause = _FIRST_PAUSE


class Supervisor:
    """Supervises the deployment in `directory` on behalf of the daemon with `epoch`."""

    def __init__(
        self, directory: Path, files: EnvoyFiles, world: World, journal: Journal, epoch: int
    ) -> None:
        self._directory = directory
        self._files = files
        self._world = world
        self._journal = journal
        self._epoch = epoch
        self._started_at = world.clock.wall()
        self._live = _Restarts()
        self._proxy = _Restarts()
        self.serving = False

    def ensure(self, deployment: Deployment) -> None:
        """Look once and start what is missing. Does not wait."""
        self._ensure_envoy(deployment)
        self._ensure_live(deployment)

    def _ensure_envoy(self, deployment: Deployment) -> None:
        found = self._journal.processes(deployment.name).get(ENVOY)
        if found is not None and processes.alive(found[0]):
            return
        now = self._now()
        if now < self._proxy.not_before:
            return
        log = self._directory / "logs" / "envoy.log"
        if found is not None:
            kind = "restarted" if self.serving else "start_failed"
            self._event(deployment, kind, {"role": ENVOY, "log": processes.log_tail(log)})
        self._proxy.failed(now)
        role = process_role(self._directory, ENVOY)
        processes.end_strays(role)
        self._files.prepare(deployment.colour)
        process = processes.spawn(role, envoy_command(self._files.bootstrap), log)
        self._journal.put_process(deployment.name, ENVOY, process)

    def _ensure_live(self, deployment: Deployment) -> None:
        found = self._journal.processes(deployment.name).get(deployment.colour)
        served = records.served_from(*found) if found else None
        if served is None:
            self._start_live(deployment)
            return
        probe = self._world.launcher.probe(served)
        if probe is Probe.READY:
            self._world.plane.connect(deployment.colour, served.endpoint)
            self._announce(deployment, served)
        elif probe is not Probe.STARTING or self._overdue(deployment):
            self._replace_live(deployment, served, probe)

    def _overdue(self, deployment: Deployment) -> bool:
        return self._now() - self._started_at > deployment.settings.ready_seconds

    def _start_live(self, deployment: Deployment) -> None:
        now = self._now()
        if now < self._live.not_before:
            return
        self._started_at = now
        served = self._world.launcher.start(deployment.colour, deployment.live)
        self._journal.put_process(
            deployment.name, deployment.colour, served.process, records.served_body(served)
        )

    def _replace_live(self, deployment: Deployment, served: Served, probe: Probe) -> None:
        kind = "restarted" if self.serving else "start_failed"
        tail = processes.log_tail(Path(served.log))
        body = {"role": deployment.colour, "probe": probe, "log": tail}
        self._event(deployment, kind, body)
        self._world.launcher.stop(served, force=True)
        self._journal.drop_process(deployment.name, deployment.colour)
        self._live.failed(self._now())
        self.serving = False

    def _announce(self, deployment: Deployment, served: Served) -> None:
        if self.serving:
            return
        try:
            healthy = self._world.meter.read().healthy[deployment.colour]
        except PlaneUnavailable:  # Envoy is still starting; the next look asks again
            return
        if healthy:
            self.serving = True
            self._live.works()
            self._proxy.works()
            self._event(deployment, "ready", {"bento": served.revision.bento})

    def _event(self, deployment: Deployment, kind: str, body: dict[str, Any]) -> None:
        self._journal.append(deployment.name, None, kind, body, self._epoch)

    def _now(self) -> float:
        return self._world.clock.wall()
