"""Keep the processes of a deployment running, and report when it serves.

These are the proxy, the live replicas, the other ones of a split, the previous revision while it is
kept warm, and the activator of a deployment that may sleep. A replica gets new ports each time; the
proxy is reconfigured, not restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from mlctl.core.ports import free_ports
from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.replicas import HungCheck, Restarts, SlotReplicas
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable, Proxy
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.process_ref import ACTIVATOR, NO_PROCESS, PROXY, ProcessRef
from mlctl.rollout.domain.spec import Endpoint, PreviousRevision
from mlctl.rollout.drivers.local import logs, processes
from mlctl.rollout.drivers.local.activator import activator_command
from mlctl.rollout.journal.records import Deployment, Rollout

# The previous revision is stopped rather than leave the live one less of the machine's memory.
MIN_FREE_MEMORY = 0.1


class Supervisor:
    """Supervises a deployment whose files are in `directory`.

    `live` are the replicas of the live slot, `other` those of the other one: the second revision of
    a split, the previous revision, or what a rollout left there.
    """

    def __init__(
        self, context: DaemonContext, directory: Path, proxy: Proxy, hung: HungCheck
    ) -> None:
        self._directory = directory
        self._proxy = proxy
        self._context = context
        self._journal = context.journal
        self._restarts = {PROXY: Restarts(), ACTIVATOR: Restarts()}
        self._started: set[str] = set()
        self.live = SlotReplicas(context, hung)
        self.other = SlotReplicas(context, hung)
        self._running_proxy: ProcessRef | None = None
        self.serving = False

    def ensure(self, deployment: Deployment, active: Rollout | None = None) -> None:
        """Check each process once, start missing and stop surplus ones. Does not wait.

        The slot of the candidate belongs to the `active` rollout once it was launched.
        """
        self._ensure_proxy(deployment)
        settings, stand_in = deployment.settings, self._stand_in(deployment)
        # Without its activator a sleeping deployment needs a replica.
        count = settings.replicas if stand_in else max(1, settings.replicas)
        self.live.ensure(deployment.slot, deployment.live, count, settings, stand_in)
        if active is None or (
            active.progress.phase is RolloutPhase.PENDING and active.reverts is None
        ):
            self._ensure_other(deployment, count)
        else:
            self.other.ready = {}
        self._announce(deployment)

    @property
    def running(self) -> list[ProcessRef]:
        """The processes found alive by the last `ensure` that are replaced at once when they end.

        None in a cluster.
        """
        replicas = (*self.live.ready.values(), *self.other.ready.values())
        proxy = [] if self._running_proxy is None else [self._running_proxy]
        found = [*proxy, *(each.process for each in replicas)]
        return [each for each in found if each.pid != NO_PROCESS]

    def _ensure_other(self, deployment: Deployment, replicas: int) -> None:
        """Keep `replicas` of a split's second revision running, or the previous revision warm.

        Stop everything else in the slot.
        """
        slot, split = deployment.slot.other, deployment.split
        if split is not None:
            self.other.ensure(slot, split.revision, replicas, deployment.settings)
            return
        previous, count = deployment.previous, 0
        if previous is not None and previous.warm_until:
            memory = psutil.virtual_memory()
            free = memory.available / memory.total
            why = not_warm(previous, self._context.now(), free)
            if why is None:
                count = previous.replicas
            else:
                self._journal.release_previous(deployment.name, why, self._context.epoch)
        revision = deployment.live if previous is None else previous.revision
        self.other.ensure(slot, revision, count, deployment.settings)

    def _ensure_proxy(self, deployment: Deployment) -> None:
        if deployment.settings.kubernetes is not None:
            return  # a Gateway runs by itself

        def start(log: Path) -> tuple[ProcessRef, dict[str, Any]]:
            self._proxy.prepare(deployment.slot)
            role = processes.process_role(self._directory, PROXY)
            return processes.spawn(role, self._proxy.command(), log), {}

        self._running_proxy = self._ensure(deployment, PROXY, start)

    def _stand_in(self, deployment: Deployment) -> Endpoint | None:
        """Where the activator listens, if the deployment may sleep and it runs."""
        if not deployment.settings.sleeps:
            return None

        def start(log: Path) -> tuple[ProcessRef, dict[str, Any]]:
            http, grpc = free_ports(2)
            command = activator_command(deployment.name, Endpoint(http, grpc))
            role = processes.process_role(self._directory, ACTIVATOR)
            return processes.spawn(role, command, log), {"http": http, "grpc": grpc}

        self._ensure(deployment, ACTIVATOR, start)
        found = self._journal.processes(deployment.name).get(ACTIVATOR)
        return Endpoint(**found[1]) if found else None

    def _ensure(
        self,
        deployment: Deployment,
        role: str,
        start: Callable[[Path], tuple[ProcessRef, dict[str, Any]]],
    ) -> ProcessRef | None:
        """Start the process unless it runs or its pause is not over; return it if it runs."""
        found = self._journal.processes(deployment.name).get(role)
        restarts, now = self._restarts[role], self._context.now()
        if found is not None and processes.alive(found[0]):
            restarts.works(now)
            return found[0]
        if now < restarts.not_before:
            return None
        log = logs.path(self._directory / "logs", role)
        if found is not None:
            # What another daemon had started was running, as before the machine's reboot.
            ran = self.serving or role not in self._started
            kind = "restarted" if ran else "start_failed"
            self._context.append(kind, {"role": role, "log": processes.log_tail(log)})
        restarts.failed(now)
        processes.end_strays(processes.process_role(self._directory, role))
        processes.log_start(log, role)
        process, body = start(log)
        self._journal.put_process(deployment.name, role, process, body)
        self._started.add(role)
        return process

    def _announce(self, deployment: Deployment) -> None:
        settings, ready = deployment.settings, len(self.live.ready)
        if self.serving:
            self.serving = ready > 0 or settings.replicas == 0
            return
        needed = min(1, settings.replicas) if settings.autoscaled else settings.replicas
        if ready < needed:
            return
        try:
            healthy = self._context.meter.read().healthy[deployment.slot]
        except DataPlaneUnavailable:  # the proxy is still starting; the next tick reads it again
            return
        if healthy:
            self.serving = True
            self._context.append("ready", {"bento": deployment.live.bento, "replicas": ready})


def not_warm(previous: PreviousRevision, now: float, free_memory: float) -> str | None:
    """Return why the previous revision is to be stopped, or None to keep it warm.

    `free_memory` is the available share of the machine's memory.
    """
    if now >= previous.warm_until:
        return "the time to keep it has ended"
    if free_memory < MIN_FREE_MEMORY:
        return f"{free_memory:.0%} of the memory is available (minimum {MIN_FREE_MEMORY:.0%})"
    return None
