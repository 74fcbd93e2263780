"""The processes of a deployment as a person wants to see them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from mlctl.rollout.daemon.restarter import STUCK_SECONDS, seconds_unseen
from mlctl.rollout.domain.process_ref import DAEMON, NO_PROCESS, PROXY, ProcessRef
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.drivers.local.fleet import replica_of
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Deployment

_SAMPLE_SECONDS = 0.2
_TIMEOUT = 2.0
_RESTARTS = ("restarted", "start_failed", "crash_loop")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process with all that it started.

    `cpu` is in cores over a short sample, `rss` in bytes, `uptime` in seconds; None for a
    process that does not run. `restarts` counts since `up`; in a `looping` one further failures
    are not recorded. `healthy` is its own word: of a Bento that it is ready, of the proxy that
    it accepts connections, of the daemon that it ticks.
    """

    role: str
    pid: int
    port: int | None
    cpu: float | None
    rss: int | None
    uptime: float | None
    restarts: int
    looping: bool
    healthy: bool


def listing(name: str | None = None) -> tuple[tuple[Deployment, tuple[ProcessRow, ...]], ...]:
    """The processes of one deployment, or of all that are up. Takes a fraction of a second."""
    with Journal(paths.journal()) as journal:
        wanted = journal.deployments() if name is None else (journal.live_deployment(name),)
        return tuple((deployment, rows(journal, deployment)) for deployment in wanted)


def rows(journal: Journal, deployment: Deployment) -> tuple[ProcessRow, ...]:
    """Every process that the journal remembers, the daemon and the proxy first."""
    everywhere = journal.processes(deployment.name)
    # What runs in a cluster is no process here.
    found = {role: each for role, each in everywhere.items() if each[0].pid != NO_PROCESS}
    trees = {role: tuple(processes.members(ref.token)) for role, (ref, _) in found.items()}
    before = {role: _cpu_seconds(tree) for role, tree in trees.items()}
    begun = time.monotonic()
    time.sleep(_SAMPLE_SECONDS)
    took = time.monotonic() - begun
    restarts = _restarts_of(journal, deployment)
    return tuple(
        _row(
            deployment,
            role,
            *found[role],
            restarts=restarts.get(role, []),
            cpu=max(0.0, _cpu_seconds(trees[role]) - before[role]) / took,
            rss=_rss(trees[role]),
        )
        for role in sorted(found, key=lambda role: (replica_of(role) is not None, role))
    )


def slot_rows(journal: Journal, deployment: Deployment, slot: Slot) -> list[ProcessRow]:
    """The replicas of one slot."""
    found = ((row, replica_of(row.role)) for row in rows(journal, deployment))
    return [row for row, replica in found if replica is not None and replica[0] is slot]


def _row(
    deployment: Deployment,
    role: str,
    ref: ProcessRef,
    body: dict[str, Any],
    *,
    restarts: list[str],
    cpu: float,
    rss: int,
) -> ProcessRow:
    running = processes.alive(ref)
    port = _port(deployment, role, body)
    return ProcessRow(
        role=role,
        pid=ref.pid,
        port=port,
        cpu=cpu if running else None,
        rss=rss if running else None,
        uptime=max(0.0, time.time() - ref.started) if running else None,
        restarts=len(restarts),
        looping="crash_loop" in restarts,
        healthy=running and _healthy(deployment, role, port),
    )


def _port(deployment: Deployment, role: str, body: dict[str, Any]) -> int | None:
    if role == PROXY:
        return deployment.ports.listen
    port = body.get("http") or body.get("endpoint", {}).get("http")
    return int(port) if port else None


def _healthy(deployment: Deployment, role: str, port: int | None) -> bool:
    if role == DAEMON:
        return seconds_unseen(paths.heartbeat(deployment.name)) < STUCK_SECONDS
    if role == PROXY:
        return _listens(deployment.ports.host, deployment.ports.listen)
    with suppress(httpx.TransportError):
        url = f"http://127.0.0.1:{port}/v2/health/ready"
        answer = httpx.get(url, timeout=_TIMEOUT, trust_env=False)
        return answer.status_code == httpx.codes.OK
    return False


def _listens(host: str, port: int) -> bool:
    """Whether connections are taken. A request would count as traffic, and keep all awake."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - what is listened on
    with suppress(OSError), socket.create_connection((host, port), _TIMEOUT):
        return True
    return False


def _restarts_of(journal: Journal, deployment: Deployment) -> dict[str, list[str]]:
    restarts: dict[str, list[str]] = {}
    for event in journal.events(deployment.name, ticks=False):
        if event.kind in _RESTARTS and event.at >= deployment.created:
            restarts.setdefault(str(event.body["role"]), []).append(event.kind)
    return restarts


def _cpu_seconds(tree: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _rss(tree: Iterable[psutil.Process]) -> int:
    total = 0
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total
