"""The "processes" of a deployment in a cluster: Deployments that are the user's own.

Nothing is started, scaled or stopped here: that stays with the owner of the manifests. A slot
is ready once all ready pods of its Service say that they serve the wanted digest.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx2

from mlctl.rollout.domain.interfaces import (
    DataPlaneRejected,
    DataPlaneUnavailable,
    ProcessState,
    RunningRevision,
)
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.process_ref import NO_PROCESS, ProcessRef
from mlctl.rollout.domain.spec import Endpoint, Revision, Slot, replica_role
from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane
from mlctl.rollout.drivers.local import logs, processes
from mlctl.rollout.drivers.local.launcher import versions_of


class KubernetesLauncher:
    """Probes the pods of both slots; logs changes under `directory`."""

    def __init__(
        self, target: KubernetesTarget, data_plane: KubernetesDataPlane, directory: Path
    ) -> None:
        self._target = target
        self._data_plane = data_plane
        self._logs = directory
        self._found: dict[str, tuple[ProcessState, str]] = {}
        self._settled: set[str] = set()

    def start(self, slot: Slot, revision: Revision, index: int = 0) -> RunningRevision:
        """Take the slot's Service for `revision`; its pods may come later."""
        log = logs.path(self._logs, replica_role(slot, index))
        processes.log_start(
            log, f"Service {self._target.services[slot]} is to serve {revision.bento}"
        )
        token = f"{slot}#{uuid.uuid4().hex}"
        return RunningRevision(
            revision, Endpoint(0, 0), ProcessRef(NO_PROCESS, 0.0, token), str(log)
        )

    def probe(self, served: RunningRevision) -> ProcessState:
        """Return the state of all ready pods together; the last one while none can be reached.

        One that was stopped is DEAD: its Service is of no concern any more.
        """
        token = served.process.token
        last = self._found.get(token, (ProcessState.STARTING, ""))
        if last[0] is ProcessState.DEAD:
            return ProcessState.DEAD
        try:
            found = self._observe(served)
        except (DataPlaneUnavailable, DataPlaneRejected):
            return last[0]
        if found != last:
            processes.note(Path(served.log), found[1])
        self._found[token] = found
        return found[0]

    def stop(self, served: RunningRevision, *, force: bool = False) -> None:
        """Let go of the Service; its pods are the user's to scale down."""
        del force
        self._found[served.process.token] = (ProcessState.DEAD, "")

    def _observe(self, served: RunningRevision) -> tuple[ProcessState, str]:
        slot = Slot(served.process.token.partition("#")[0])
        service, wanted = self._target.services[slot], served.revision
        pods = [pod for pod in self._data_plane.cluster.pods(service) if pod.ready]
        if not pods:
            return ProcessState.STARTING, f"Service {service} has no ready pod"
        answers = self._data_plane.cluster.query(pods, f"/v2/models/{wanted.name}")
        others = []
        for pod in pods:
            answer = answers[pod.uid]
            if answer is None or answer.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
                return ProcessState.STARTING, f"pod {pod.name} does not answer"
            if wanted.digest not in versions_of(answer.content):
                served_digests = ", ".join(versions_of(answer.content)) or "no such model"
                others.append(f"pod {pod.name} serves {served_digests}, not {wanted.digest}")
        if not others:
            self._settled.add(served.process.token)
            return ProcessState.READY, f"all ready pods of {service} serve {wanted.digest}"
        # Before it was ready, a mixture is an update of the pods that is under way.
        settled = served.process.token in self._settled or len(others) == len(pods)
        return ProcessState.WRONG_MODEL if settled else ProcessState.STARTING, others[0]
