"""Looking at a deployment again and again, for its live picture: the journal and the proxy.

It only reads; like every client it has a dead daemon replaced.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rollout.client.lifecycle import ensure_daemon
from rollout.client.view import Flow, ScreenState, Snapshot, screen
from rollout.domain.counts import Reading, difference
from rollout.domain.ports import DataPlaneRejected, DataPlaneUnavailable, MeteredDataPlane
from rollout.domain.spec import Slot
from rollout.drivers.local import processes
from rollout.drivers.local.fleet import replica_of
from rollout.drivers.proxies import edges_of, proxy_of
from rollout.journal import paths
from rollout.journal.journal import Journal
from rollout.journal.records import TICK, Deployment, JournalEvent, Rollout

FLOW_SECONDS = 10.0
_DAEMON_CHECK_SECONDS = 2.0
_KEPT_EVENTS = 4


class LiveView:
    """Holds what the next picture of the deployment `name` needs of those before."""

    def __init__(self, name: str, journal: Journal, data_plane: MeteredDataPlane) -> None:
        self._name = name
        self._journal = journal
        self._data_plane = data_plane
        self._readings: deque[tuple[float, Reading]] = deque()
        self._rollout: int | None = None
        self._checked = 0.0
        self._read = 0
        self.events: deque[JournalEvent] = deque(maxlen=_KEPT_EVENTS)

    def observe(self) -> ScreenState:
        """The picture now; DEPLOYMENT_NOT_FOUND once it was taken down."""
        deployment = self._journal.live_deployment(self._name)
        if time.monotonic() - self._checked > _DAEMON_CHECK_SECONDS:
            self._checked = time.monotonic()
            ensure_daemon(self._journal, self._name)
        weights, healthy = self._query()
        rollout = self._shown()
        return screen(
            Snapshot(
                now=time.time(),
                deployment=deployment,
                weights=weights,
                healthy=healthy,
                flows=self._flows(edges_of(deployment.settings)),
                replicas=self._replicas(deployment),
                rollout=rollout,
                tick=self._journal.newest(self._name, rollout.id, TICK) if rollout else None,
            )
        )

    def _query(self) -> tuple[dict[Slot, int], dict[Slot, bool]]:
        try:
            weights, reading = self._data_plane.weights(), self._data_plane.read()
        except (DataPlaneUnavailable, DataPlaneRejected):
            self._readings.clear()
            return {}, {}
        now = time.monotonic()
        if self._readings and difference(self._readings[-1][1], reading) is None:
            self._readings.clear()  # the proxy was started again
        self._readings.append((now, reading))
        while self._readings[0][0] < now - FLOW_SECONDS:
            self._readings.popleft()
        return weights or {}, dict(reading.healthy)

    def _flows(self, edges: tuple[float, ...]) -> dict[Slot, Flow]:
        if len(self._readings) < 2:
            return {}
        (begun, before), (ended, after) = self._readings[0], self._readings[-1]
        parts = difference(before, after) or {}
        return {slot: Flow(totals, ended - begun, edges) for slot, totals in parts.items()}

    def _shown(self) -> Rollout | None:
        """The rollout under way, or the last one that was seen under way."""
        active = self._journal.active(self._name)
        if active is not None:
            if active.id != self._rollout:
                self._rollout, self._read = active.id, 0
                self.events.clear()
            self._remember(active.id)
            return active
        if self._rollout is None:
            return None
        self._remember(self._rollout)
        return self._journal.rollout(self._rollout)

    def _remember(self, rollout: int) -> None:
        until = self._journal.last_seq()
        for event in self._journal.events(self._name, self._read, rollout, ticks=False):
            until = max(until, event.seq)
            self.events.append(event)
        self._read = until

    def _replicas(self, deployment: Deployment) -> dict[Slot, int]:
        found = dict.fromkeys(Slot, 0)
        for role, (ref, _) in self._journal.processes(deployment.name).items():
            number = replica_of(role)
            if number is not None and processes.alive(ref):
                found[number[0]] += 1
        return found


@contextmanager
def open_live_view(name: str) -> Iterator[LiveView]:
    """A view at deployment `name`; DEPLOYMENT_NOT_FOUND if it is down."""
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(paths.journal()))
        deployment = journal.live_deployment(name)
        proxy = proxy_of(paths.directory(name), deployment.ports, deployment.settings)
        data_plane = stack.enter_context(proxy.data_plane())
        yield LiveView(name, journal, data_plane)
