"""Keep the replicas of one slot running, as many as wanted.

A replica that died or hangs is started again, after a pause that doubles with each failure in a
row; the others go on serving. A surplus replica is removed from the proxy, then stopped once it
finished its requests. The live slot and the slot of the previous revision have one object each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlctl.core.backoff import pause_after
from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable, ProcessState, RunningRevision
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint, Revision, Slot, replica_role
from mlctl.rollout.drivers.local.processes import log_tail

FIRST_PAUSE = 1.0
MAX_PAUSE = 30.0
# After this uptime a death starts the pauses between restarts from the shortest again.
_STEADY_SECONDS = 30.0
# From this failure in a row on it is a crash loop: reported once, still retried.
_LOOP_FAILURES = 3
# Until the proxy sends no more requests to a removed endpoint.
_REMOVAL_SECONDS = 1.0
# Until the proxy finds a new endpoint healthy; the old ones stay for that time.
_JOIN_SECONDS = 1.5
_HUNG = "hung"

HungCheck = Callable[[RunningRevision], bool]


@dataclass
class Restarts:
    """When a process may be started again, and how often it failed in a row."""

    not_before: float = 0.0
    failures: int = 0
    pauses: int = 0
    works_since: float | None = None

    def failed(self, now: float) -> None:
        if self.works_since is not None and now - self.works_since > _STEADY_SECONDS:
            self.failures = self.pauses = 0
        worked, self.works_since = self.works_since is not None, None
        self.failures += 1
        if worked and self.failures == 1:  # it served, so this is no crash loop: at once
            return
        self.pauses += 1
        self.not_before = now + pause_after(self.pauses, FIRST_PAUSE, MAX_PAUSE)

    def works(self, now: float) -> None:
        if self.works_since is None:
            self.works_since = now


@dataclass
class _Replica:
    """The state of one replica beside its process; times in wall-clock seconds.

    `removed_at` is when the proxy was to stop sending to it, `stopping` whether it got SIGTERM.
    """

    started_at: float
    restarts: Restarts = field(default_factory=Restarts)
    worked: bool = False
    removed_at: float | None = None
    stopping: bool = False


class SlotReplicas:
    """The replicas of one slot; `hung` says which hang."""

    def __init__(self, context: DaemonContext, hung: HungCheck) -> None:
        self._context = context
        self._hung = hung
        self._fleet = context.fleet
        self._replicas: dict[str, _Replica] = {}
        self._joined: dict[Endpoint, float] = {}
        self.ready: dict[int, RunningRevision] = {}
        self.starting = False

    def ensure(
        self,
        slot: Slot,
        revision: Revision,
        count: int,
        settings: DeploymentSettings,
        stand_in: Endpoint | None = None,
    ) -> None:
        """Probe each replica once, start missing and stop surplus ones. Does not wait.

        One that serves another revision is stopped first. `ready` and `starting` are what it
        found. `stand_in` is the endpoint that the proxy gets while no replica is ready.
        """
        found = self._fleet.replicas(slot)
        indices = {*range(count), *found}
        self._replicas = {
            role: self._replicas.get(role) or _Replica(self._context.now(), worked=index in found)
            for index in indices
            for role in (replica_role(slot, index),)
        }
        self.ready, leaving = {}, set[Endpoint]()
        for index in indices:
            role, served = replica_role(slot, index), found.get(index)
            replica = self._replicas[role]
            if served is None:
                self._start(slot, revision, index, replica)
            elif index >= count or replica.stopping or not _serves(served, revision):
                if self._drain(role, replica, served, settings):
                    leaving.add(served.endpoint)
            else:
                state = self._check(role, replica, served, settings)
                if state is ProcessState.READY:
                    self.ready[index] = served
                    replica.removed_at = None
                elif state is ProcessState.DEAD:
                    self._start(slot, revision, index, replica)
        self.starting = len(self.ready) < count
        # Another revision must not answer for this one until it is replaced.
        same = all(_serves(served, revision) for served in found.values())
        self._connect(slot, count if same else 0, leaving, stand_in)

    def _connect(
        self, slot: Slot, count: int, leaving: set[Endpoint], stand_in: Endpoint | None
    ) -> None:
        """Connect the ready replicas; the old ones stay until the proxy finds the new healthy."""
        now = self._context.now()
        wanted = [served.endpoint for served in self.ready.values()]
        if not wanted and stand_in is not None:
            wanted = [stand_in]
        if not wanted and count:
            return  # an endpoint that comes back soon is better than none
        joined = {each: self._joined.get(each, now) for each in wanted}
        if joined and all(now - since < _JOIN_SECONDS for since in joined.values()):
            stay = {*leaving, stand_in}
            joined |= {each: at for each, at in self._joined.items() if each in stay}
        self._joined = joined
        with suppress(DataPlaneUnavailable):  # being restarted; the next tick connects again
            self._context.data_plane.connect(slot, tuple(joined))

    def _check(
        self, role: str, replica: _Replica, served: RunningRevision, settings: DeploymentSettings
    ) -> ProcessState:
        """Return READY, STARTING, or DEAD for a failed, hanging or late replica, which is ended."""
        probe, now = self._context.launcher.probe(served), self._context.now()
        if probe is ProcessState.READY and not self._hung(served):
            replica.worked = True
            replica.restarts.works(now)
            return ProcessState.READY
        late = now - replica.started_at > settings.ready_seconds
        if probe is not ProcessState.STARTING or late:
            log = log_tail(Path(served.log))
            self._end(role, served)
            replica.restarts.failed(now)
            why = _HUNG if probe is ProcessState.READY else probe
            self._report(replica, {"role": role, "probe": why, "log": log})
            return ProcessState.DEAD
        return ProcessState.STARTING

    def _start(self, slot: Slot, revision: Revision, index: int, replica: _Replica) -> None:
        now = self._context.now()
        if now < replica.restarts.not_before:
            return
        replica.started_at = now
        try:
            self._fleet.start(slot, revision, index)
        except OSError as error:
            replica.restarts.failed(now)
            role, log = replica_role(slot, index), str(error.strerror)
            self._report(replica, {"role": role, "probe": ProcessState.DEAD, "log": log})

    def _report(self, replica: _Replica, body: dict[str, Any]) -> None:
        if replica.restarts.failures > _LOOP_FAILURES:
            return
        kind = "restarted" if replica.worked else "start_failed"
        if replica.restarts.failures == _LOOP_FAILURES:
            kind = "crash_loop"
        self._context.append(kind, body)

    def _drain(
        self, role: str, replica: _Replica, served: RunningRevision, settings: DeploymentSettings
    ) -> bool:
        """Stop a surplus replica step by step; whether it still answers requests.

        After SIGTERM the server finishes its requests by itself.
        """
        now = self._context.now()
        dead = self._context.launcher.probe(served) is ProcessState.DEAD
        answers = not dead and not replica.stopping
        if replica.removed_at is None or (served.endpoint in self._joined and answers):
            replica.removed_at = now
        waited = now - replica.removed_at
        if dead or waited > 2 * settings.drain_seconds + _REMOVAL_SECONDS:
            self._end(role, served)
            replica.stopping, replica.removed_at = False, None
        elif waited > _REMOVAL_SECONDS and not replica.stopping:
            replica.stopping = True
            self._context.launcher.stop(served)
        return answers

    def _end(self, role: str, served: RunningRevision) -> None:
        self._context.launcher.stop(served, force=True)
        self._context.journal.drop_process(self._context.name, role)


def _serves(served: RunningRevision, revision: Revision) -> bool:
    return served.revision.digest == revision.digest
