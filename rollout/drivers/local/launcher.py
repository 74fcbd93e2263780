"""Bentos as local processes: started detached, ready only when they serve the right digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import httpx

from mlctl.core.home import bento_environment
from mlctl.core.ports import free_ports
from mlctl.core.tokens import authorization
from mlctl.rollout.domain.interfaces import ProcessState, RunningRevision
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint, Revision, Slot, replica_role
from mlctl.rollout.drivers.local import logs, processes
from mlctl.rollout.drivers.local.samples import sample_folder

GRPC_PORT = "MLCTL_GRPC_PORT"
PROXIED = "MLCTL_PROXIED"
WORKERS = "MLCTL_WORKERS"
_PROBE_TIMEOUT = 2.0
# How long a tick waits for one answer; a server that loads may take connections and not answer.
_PROBE_PATIENCE = 0.1
_PROBES_AT_ONCE = 16
# Settings of a server on its own that must not reach one behind the proxy.
_ALONE = dict.fromkeys(
    (
        "MLCTL_TLS_CERT",
        "MLCTL_TLS_KEY",
        "MLCTL_TLS_CLIENT_CA",
    ),
    "",
)


class LocalLauncher:
    """Runs the Bentos of one deployment with logs under `logs`."""

    def __init__(self, logs: Path, settings: DeploymentSettings) -> None:
        self._logs = logs
        self._settings = settings
        self._ready: set[str] = set()
        self._client = httpx.Client(timeout=_PROBE_TIMEOUT, trust_env=False)
        self._pool = ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="probe")
        self._probes: dict[str, Future[ProcessState]] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def start(self, slot: Slot, revision: Revision, index: int = 0) -> RunningRevision:
        name = replica_role(slot, index)
        role = processes.process_role(self._logs.parent, name)
        processes.end_strays(role)
        http, grpc = free_ports(2)
        log = logs.path(self._logs, name)
        processes.log_start(log, f"{revision.bento} as {name} on port {http}")
        command = [part.format(bento=revision.bento, port=http) for part in self._settings.serve]
        process = processes.spawn(role, command, log, self._environment(slot, grpc))
        return RunningRevision(revision, Endpoint(http, grpc), process, str(log))

    def probe(self, served: RunningRevision) -> ProcessState:
        """READY once /readyz answers 200 and the model's metadata names the digest.

        After that only the process is checked; the proxy checks its health.
        An answer that takes long is found by a later call: it is STARTING until then.
        """
        token = served.process.token
        if not processes.alive(served.process):
            self._probes.pop(token, None)
            return ProcessState.DEAD
        if token in self._ready:
            return ProcessState.READY
        if token not in self._probes:
            self._probes[token] = self._pool.submit(self._read_state, served)
        if not wait((self._probes[token],), _PROBE_PATIENCE).done:
            return ProcessState.STARTING
        probe = self._probes.pop(token).result()
        if probe is ProcessState.READY:
            self._ready.add(token)
        return probe

    def stop(self, served: RunningRevision, *, force: bool = False) -> None:
        (processes.kill if force else processes.terminate)(served.process)

    def _environment(self, slot: Slot, grpc: int) -> dict[str, str]:
        workers = str(self._settings.workers)
        samples = sample_folder(self._logs.parent, self._settings)
        recording = samples.environment(slot) if samples else {}
        own = {GRPC_PORT: str(grpc), WORKERS: workers, PROXIED: "1", **recording}
        return {**bento_environment(), **_ALONE, **own}

    def _read_state(self, served: RunningRevision) -> ProcessState:
        base = f"http://127.0.0.1:{served.endpoint.http}"
        try:
            ready = self._client.get(f"{base}/readyz")
            health = self._client.get(f"{base}/v2/health/ready")
            if ready.status_code != 200 or health.status_code != 200:
                return ProcessState.STARTING
            model = self._client.get(
                f"{base}/v2/models/{served.revision.name}", headers=authorization()
            )
        except httpx.TransportError:
            return ProcessState.STARTING
        if model.status_code != 200:
            return ProcessState.WRONG_MODEL
        return (
            ProcessState.READY
            if served.revision.digest in versions_of(model.content)
            else ProcessState.WRONG_MODEL
        )


def versions_of(body: bytes) -> list[str]:
    """Return the `versions` in a model's metadata; none if it is no such document."""
    try:
        document = json.loads(body)
    except ValueError:
        return []
    versions = document.get("versions", []) if isinstance(document, Mapping) else []
    return [str(version) for version in versions]
