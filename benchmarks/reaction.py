"""Seconds from a fault of the candidate, or a rollback, until the proxy sends it no traffic.

A real deployment of small servers whose faults a file switches on, half of the traffic on the
candidate, one client in a closed loop. The end is the moment at which Envoy's own weights are zero.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import quote

from benchmarks.loadgen import LoadTarget, build, closed_command
from benchmarks.result import BenchmarkResult
from benchmarks.servers import wait_until
from mlctl.core.ports import free_ports
from mlctl.loadtest.inputs import post
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable, MeteredDataPlane
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import DeploymentSettings, Revision, RolloutSpec, Slot
from mlctl.rollout.drivers.local.processes import members
from mlctl.rollout.drivers.proxies import proxy_of
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import JournalEvent

_REPEATS = 5
_TICKS = (1.0, 0.5)
_NAME = "shop"
_SPEC = RolloutSpec(steps=(50, 100), step_seconds=600.0, max_error_rate=0.01, warmup_seconds=1.0)
_SERVER = str(Path(__file__).with_name("faulty_server.py"))
_MLCTL = (sys.executable, "-m", "mlctl.cli.main")
_PATIENCE_SECONDS = 120.0
_ENDLESS_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class FaultyDeployment:
    """A deployment under load whose candidate fails while the file `fault` exists."""

    data_plane: MeteredDataPlane
    fault: Path

    def promote_to_half(self) -> int:
        """Start a rollout; return it when half of the traffic is on its candidate and evaluated."""
        self.fault.unlink(missing_ok=True)
        candidate = _revision(f"tiny:bb?fault={quote(str(self.fault))}")
        rollout = deployments.promote(_NAME, candidate, _SPEC)
        _wait_for_event(rollout, lambda event: event.body.get("phase") == RolloutPhase.SHIFT)
        _wait_for_event(rollout, lambda event: event.body.get("judged") is True)
        return rollout

    def seconds_to_zero(self, started: float) -> float:
        """Return the seconds from `started` until the candidate has no traffic."""
        wait_until(self._has_no_traffic, "no traffic on the candidate", _PATIENCE_SECONDS)
        return time.time() - started

    def _has_no_traffic(self) -> bool:
        try:
            weights = self.data_plane.weights()
        except DataPlaneUnavailable:
            return False
        return weights is not None and weights[Slot.GREEN] == 0


@contextmanager
def deployed(folder: Path, tick_seconds: float) -> Iterator[FaultyDeployment]:
    """Start the deployment with a load, evaluated every `tick_seconds`; stop both at the end."""
    (port,) = free_ports(1)
    settings = DeploymentSettings(
        tick_seconds=tick_seconds,
        drain_seconds=2.0,
        serve=(sys.executable, _SERVER, "{bento}", "--port", "{port}"),
        champion=("/bin/true",),
        runs=(),
    )
    target = LoadTarget("http", port, post("/predict", b"{}", {"Host": "127.0.0.1"}))
    load = closed_command(build("loadgen", folder), target, 1, _ENDLESS_SECONDS)
    deployment = deployments.up(_NAME, _revision("tiny:aa"), port, settings=settings)
    try:
        proxy = proxy_of(paths.directory(_NAME), deployment.ports, settings)
        with (
            proxy.data_plane() as data_plane,
            subprocess.Popen(load, stdout=subprocess.DEVNULL) as client,
        ):
            try:
                yield FaultyDeployment(data_plane, folder / "fault")
            finally:
                client.kill()
    finally:
        deployments.down(_NAME)


def _revision(tag: str) -> Revision:
    digest = tag.partition("?")[0].partition(":")[2].ljust(64, "0")
    return Revision(tag, digest, "tiny-optimized", "1", "models:/tiny/1")


def _wait_for_event(rollout: int, matches: Callable[[JournalEvent], bool]) -> JournalEvent:
    found: list[JournalEvent] = []

    def exists() -> bool:
        found[:] = filter(matches, deployments.events(_NAME, rollout=rollout))
        return bool(found)

    wait_until(exists, f"event of rollout {rollout}", _PATIENCE_SECONDS)
    return found[0]


def _wait_for_end(rollout: int) -> None:
    _wait_for_event(rollout, lambda event: event.kind == "ended")


def _errors(deployment: FaultyDeployment) -> dict[str, float]:
    """Let every response of the candidate fail from one moment on."""
    rollout = deployment.promote_to_half()
    started = time.time()
    deployment.fault.touch()
    seconds = deployment.seconds_to_zero(started)
    body = _wait_for_event(rollout, lambda event: event.kind == "traffic_restored").body
    _wait_for_end(rollout)
    return {
        "the first error": seconds,
        "the first bad tick": body["seconds_since_first_bad"],
        "the decision": body["seconds_since_decision"],
    }


def _killed(deployment: FaultyDeployment) -> dict[str, float]:
    """Kill the candidate; its requests are retried on the live revision."""
    rollout = deployment.promote_to_half()
    with Journal(paths.journal()) as journal:
        process, _ = journal.processes(_NAME)["green/0"]
    started = time.time()
    for each in members(process.token):
        each.send_signal(signal.SIGKILL)
    seconds = deployment.seconds_to_zero(started)
    _wait_for_end(rollout)
    return {"SIGKILL": seconds}


def _rolled_back(deployment: FaultyDeployment) -> dict[str, float]:
    """Roll back by the client library in this process, and by the command."""
    command = [*_MLCTL, "rollback", _NAME]

    def run_command() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return {
        "the call": _seconds_after(
            deployment, lambda: deployments.rollback(_NAME, "by the operator")
        ),
        "the command's start": _seconds_after(deployment, run_command),
    }


def _seconds_after(deployment: FaultyDeployment, action: Callable[[], object]) -> float:
    rollout = deployment.promote_to_half()
    thread = threading.Thread(target=action)
    started = time.time()
    thread.start()
    seconds = deployment.seconds_to_zero(started)
    thread.join()
    _wait_for_end(rollout)
    return seconds


CAUSES = {
    "every response fails": _errors,
    "the candidate is killed": _killed,
    "`mlctl rollback`": _rolled_back,
}


def measure(folder: Path, result: BenchmarkResult) -> None:
    """Add the table of all causes."""
    table = result.table(
        f"From the cause until no traffic is on the candidate, {_REPEATS} runs each",
        *("cause", "counted from", "tick s", "median s", "max s"),
    )
    for tick in _TICKS:
        with deployed(folder, tick) as deployment:
            for cause, run in CAUSES.items():
                runs = [run(deployment) for _ in range(_REPEATS)]
                for counted_from in runs[0]:
                    seconds = [each[counted_from] for each in runs]
                    table.add(cause, counted_from, tick, median(seconds), max(seconds))
