"""Starting and ending a deployment's processes from a client: its daemon, and all of it.

A daemon that is dead or stuck is replaced: whatever is left of the former, and of the watcher
that would start it again, is killed before the new one starts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from mlctl.core.home import BENTO_HOME_VARIABLE, HOME_VARIABLE, mlctl_home
from mlctl.registry.tracking import TRACKING_VARIABLE
from mlctl.rollout.daemon.restarter import STUCK_SECONDS, seconds_unseen
from mlctl.rollout.domain.process_ref import ACTIVATOR, DAEMON, PROXY, ProcessRef
from mlctl.rollout.domain.spec import DeploymentSettings, Slot
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.drivers.local.fleet import replica_of
from mlctl.rollout.drivers.local.samples import SampleFolder
from mlctl.rollout.drivers.local.security_settings import security_environment
from mlctl.rollout.drivers.local.server_settings import server_environment
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal

POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0


def ensure_daemon(journal: Journal, name: str) -> None:
    """Start a daemon unless one ticks; a stuck one is killed first."""
    found = journal.processes(name).get(DAEMON)
    if found is not None:
        running = processes.alive(found[0])
        if running and seconds_unseen(paths.heartbeat(name)) < STUCK_SECONDS:
            return
        processes.kill(found[0])
        _await_end([found[0]])  # until it is gone it holds the lock
    spawn_daemon(name, journal.deployment(name).settings)


def spawn_daemon(name: str, settings: DeploymentSettings) -> ProcessRef:
    """Start a watcher with its daemon; the process of the watcher."""
    role = processes.process_role(paths.directory(name), DAEMON)
    command = [sys.executable, "-P", "-m", "mlctl.rollout.daemon.restarter", name]
    log = paths.daemon_log(name)
    processes.log_start(log, DAEMON)
    return processes.spawn(role, command, log, _environment(settings))


def take_down(journal: Journal, name: str) -> None:
    """Fence the daemon out, then end daemon, proxy and Bentos in this order."""
    journal.retire(name)
    found = journal.processes(name)
    replicas = tuple(role for role in found if replica_of(role) is not None)
    for roles in ((DAEMON,), (PROXY, ACTIVATOR), (*replicas, *Slot)):
        _stop([found[role][0] for role in roles if role in found])
        for role in roles:
            processes.end_strays(processes.process_role(paths.directory(name), role))
            journal.drop_process(name, role)
    SampleFolder(paths.directory(name)).clear()


def _stop(refs: Sequence[ProcessRef]) -> None:
    for ref in refs:
        processes.terminate(ref)
    _await_end(refs)
    for ref in refs:
        processes.kill(ref)


def _await_end(refs: Sequence[ProcessRef]) -> None:
    wait_until(lambda: not any(map(processes.alive, refs)), _STOP_SECONDS)


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Call `done` again and again, for up to `seconds`; return whether it became true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(POLL_SECONDS)
    return False


def _environment(settings: DeploymentSettings) -> dict[str, str]:
    """Return the variables of a daemon and its processes that override the shell's."""
    kept = {
        BENTO_HOME_VARIABLE: settings.bento_home,
        TRACKING_VARIABLE: settings.tracking_uri,
    }
    home = {HOME_VARIABLE: str(mlctl_home())}
    variables = {name: value for name, value in kept.items() if value is not None}
    servers = {**server_environment(settings), **security_environment(settings)}
    return {**home, **variables, **servers}
