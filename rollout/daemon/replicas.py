"""Keeps the live slot's replicas running, as many as the deployment wants.

One that died or hangs is started again, after a pause that doubles with each failure in a row;
the others carry on meanwhile. One too many is taken from the proxy, given time to finish what
it holds, and stopped. While none serves and the deployment may sleep, the activator stands in.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rollout.daemon.controller import World
from rollout.domain.ports import DataPlaneUnavailable, ProcessState, RunningRevision
from rollout.domain.spec import Endpoint, replica_role
from rollout.drivers.local.fleet import Fleet
from rollout.drivers.local.processes import log_tail
from rollout.journal.journal import Journal
from rollout.journal.records import Deployment

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
# What ran for so long did not die of what the one before it died of.
_STEADY_SECONDS = 30.0
# From this failure in a row on it is a crash loop: reported once, still retried.
_LOOP_FAILURES = 3
# How long the proxy may take to send nothing more to a replica that was taken from it.
_UNHOOK_SECONDS = 1.0
# How long the proxy may take to find a new endpoint healthy; the old ones stay for that time.
_JOIN_SECONDS = 1.5
_HUNG = "hung"


class LivenessCheck(Protocol):
    """What knows whether a process hangs."""

    def hung(self, served: RunningRevision) -> bool: ...


@dataclass
class Restarts:
    """When something may be started again, and how often it failed in a row."""

    not_before: float = 0.0
    pause: float = FIRST_PAUSE
    failures: int = 0
    works_since: float | None = None

    def failed(self, now: float) -> None:
        if self.works_since is not None and now - self.works_since > _STEADY_SECONDS:
            self.pause, self.failures = FIRST_PAUSE, 0
        self.works_since = None
        self.failures += 1
        self.not_before = now + self.pause
        self.pause = min(self.pause * 2, LONGEST_PAUSE)

    def works(self, now: float) -> None:
        if self.works_since is None:
            self.works_since = now


@dataclass
class _ReplicaState:
    """What is known of one replica beside its process."""

    started_at: float
    restarts: Restarts = field(default_factory=Restarts)
    worked: bool = False
    # Since when the proxy sends nothing more to it, and whether it was told to stop.
    unhooked: float | None = None
    stopping: bool = False


class LiveReplicas:
    """The live replicas on behalf of the daemon with `epoch`."""

    def __init__(
        self, name: str, world: World, journal: Journal, health: LivenessCheck, epoch: int
    ) -> None:
        self._name = name
        self._world = world
        self._journal = journal
        self._health = health
        self._epoch = epoch
        self._fleet = Fleet(name, world.launcher, journal)
        self._states: dict[str, _ReplicaState] = {}
        self._joined: dict[Endpoint, float] = {}
        self._leaving: set[Endpoint] = set()
        self.ready: dict[int, RunningRevision] = {}

    def ensure(self, deployment: Deployment, stand_in: Endpoint | None) -> None:
        """Probe each replica once, start and stop replicas as needed; does not wait."""
        slot, wanted = deployment.slot, deployment.settings.replicas
        found = self._fleet.replicas(slot)
        self._states = {
            role: self._states.get(role) or _ReplicaState(self._now(), worked=index in found)
            for index in {*range(wanted), *found}
            for role in (replica_role(slot, index),)
        }
        self.ready, self._leaving = {}, set()
        for index in {*range(wanted), *found}:
            state, served = self._states[replica_role(slot, index)], found.get(index)
            if served is not None and (index >= wanted or state.stopping):
                self._drain(deployment, index, state, served)
            elif self._serves(deployment, index, state, served) and served is not None:
                self.ready[index] = served
                state.unhooked = None
        self._connect(deployment, stand_in)

    def _connect(self, deployment: Deployment, stand_in: Endpoint | None) -> None:
        """Connect those that serve; until the proxy can have found them healthy, the old too."""
        now = self._now()
        wanted = [served.endpoint for served in self.ready.values()]
        if not wanted and stand_in is not None:
            wanted = [stand_in]
        if not wanted:
            return
        joined = {each: self._joined.get(each, now) for each in wanted}
        if all(now - since < _JOIN_SECONDS for since in joined.values()):
            joined |= {each: at for each, at in self._joined.items() if self._lives(each, stand_in)}
        self._joined = joined
        with suppress(DataPlaneUnavailable):  # being restarted; the next tick tells it again
            self._world.data_plane.connect(deployment.slot, tuple(joined))

    def _lives(self, endpoint: Endpoint, stand_in: Endpoint | None) -> bool:
        return endpoint == stand_in or endpoint in self._leaving

    def _serves(
        self,
        deployment: Deployment,
        index: int,
        state: _ReplicaState,
        served: RunningRevision | None,
    ) -> bool:
        if served is None:
            self._start(deployment, index, state)
            return False
        probe = self._world.launcher.probe(served)
        if probe is ProcessState.READY and not self._health.hung(served):
            state.worked = True
            state.restarts.works(self._now())
            return True
        late = self._now() - state.started_at > deployment.settings.ready_seconds
        if probe is not ProcessState.STARTING or late:
            why = _HUNG if probe is ProcessState.READY else probe
            self._replace(deployment, index, state, served, why)
        return False

    def _start(self, deployment: Deployment, index: int, state: _ReplicaState) -> None:
        now = self._now()
        if now < state.restarts.not_before:
            return
        state.started_at = now
        try:
            self._fleet.start(deployment.slot, deployment.live, index)
        except OSError as error:
            state.restarts.failed(now)
            role = replica_role(deployment.slot, index)
            self._report(
                state, {"role": role, "probe": ProcessState.DEAD, "log": str(error.strerror)}
            )

    def _replace(
        self,
        deployment: Deployment,
        index: int,
        state: _ReplicaState,
        served: RunningRevision,
        why: str,
    ) -> None:
        tail = log_tail(Path(served.log))
        self._world.launcher.stop(served, force=True)
        self._fleet.forget(deployment.slot, index)
        state.restarts.failed(self._now())
        role = replica_role(deployment.slot, index)
        self._report(state, {"role": role, "probe": why, "log": tail})

    def _report(self, state: _ReplicaState, body: dict[str, Any]) -> None:
        if state.restarts.failures > _LOOP_FAILURES:
            return
        kind = "restarted" if state.worked else "start_failed"
        if state.restarts.failures == _LOOP_FAILURES:
            kind = "crash_loop"
        self._journal.append(self._name, None, kind, body, self._epoch)

    def _drain(
        self, deployment: Deployment, index: int, state: _ReplicaState, served: RunningRevision
    ) -> None:
        """Stop one that is wanted no longer, a little per tick; it finishes its requests itself."""
        now = self._now()
        dead = self._world.launcher.probe(served) is ProcessState.DEAD
        if not dead and not state.stopping:
            self._leaving.add(served.endpoint)
        if state.unhooked is None or (served.endpoint in self._joined and not state.stopping):
            state.unhooked = now
        waited = now - state.unhooked
        if dead or waited > 2 * deployment.settings.drain_seconds + _UNHOOK_SECONDS:
            self._world.launcher.stop(served, force=True)
            self._fleet.forget(deployment.slot, index)
            state.stopping, state.unhooked = False, None
        elif waited > _UNHOOK_SECONDS and not state.stopping:
            state.stopping = True
            self._world.launcher.stop(served)

    def _now(self) -> float:
        return self._world.clock.wall()
