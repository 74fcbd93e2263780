"""The process that watches one deployment: `python -m rollout.daemon NAME`.

It holds a lock for life, supervises Envoy and the live Bento, and ticks the active rollout.
Clients only write to the journal, which the daemon polls; so a client may die at any time.
If the daemon dies, Envoy and the Bentos go on with the last weights until the next one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import psutil

from bundle.clock import SystemClock
from rollout import places
from rollout.champion import ChampionKeeper, ProcessChampions
from rollout.controller import Controller, Watch, World
from rollout.envoy import EnvoyFiles, EnvoyPlane
from rollout.envoy_config import LATENCY_EDGES_MS
from rollout.journal import Journal, StaleEpochError
from rollout.launcher import LocalLauncher
from rollout.machine import Phase
from rollout.model import check_name
from rollout.ports import PlaneRejected, PlaneUnavailable
from rollout.processes import TOKEN_VARIABLE, ProcessRef
from rollout.records import Deployment, Rollout
from rollout.supervisor import Supervisor

DAEMON = "daemon"
_POLL_SECONDS = 0.02
_MAX_ERRORS = 5


class Daemon:
    """Watches the deployment `name` until told to stop or until another one takes over."""

    def __init__(
        self, name: str, journal: Journal, stack: ExitStack, unwatched_seconds: float
    ) -> None:
        directory = places.directory(name)
        deployment = journal.deployment(name)
        self._name = name
        self._journal = journal
        self._heartbeat = places.heartbeat(name)
        self._unwatched = unwatched_seconds
        self._epoch = journal.take_over(name)
        files = EnvoyFiles(directory, deployment.ports)
        plane = stack.enter_context(EnvoyPlane(files, deployment.ports))
        launcher = LocalLauncher(directory / "logs", deployment.settings)
        stack.callback(launcher.close)
        self._world = World(plane, plane, launcher, SystemClock(), LATENCY_EDGES_MS)
        self._supervisor = Supervisor(directory, files, self._world, journal, self._epoch)
        self._champions = ChampionKeeper(
            ProcessChampions(deployment.settings.champion),
            journal,
            self._world.clock,
            deployment.settings.alias_retry_seconds,
        )
        self._watch = Watch(self._epoch, deployment.settings, self._champion_settled)
        self._controller: Controller | None = None
        self._plane_lost = False
        self._stop = False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """The SIGTERM handler: finish this look, then leave everything running."""
        self._stop = True

    def run(self) -> int:
        """Look until stopped; the exit code. Errors that repeat end it: others may take over."""
        errors = 0
        while not self._stop:
            try:
                self._look()
                errors = 0
            except StaleEpochError:
                return 0
            except Exception:  # noqa: BLE001 - a watcher must outlive one bad look; it is logged
                traceback.print_exc()
                errors += 1
                if errors == _MAX_ERRORS:
                    return 1
            self._heartbeat.touch()
            self._wait()
        return 0

    def _look(self) -> None:
        deployment = self._journal.deployment(self._name)
        if deployment.epoch != self._epoch or not deployment.up:
            raise StaleEpochError(self._name)
        self._supervisor.ensure(deployment)
        try:
            self._drive(deployment)
            self._plane_lost = False
        except (PlaneUnavailable, PlaneRejected) as error:
            self._report_plane(error)
        if self._supervisor.serving:
            self._champions.poll(self._journal.deployment(self._name))

    def _drive(self, deployment: Deployment) -> None:
        """Tick the active rollout, or else hold all traffic on the live colour."""
        active = self._journal.active(self._name)
        if active is None:
            self._controller = None
            colour = deployment.colour
            self._world.plane.apply({colour: 100, colour.other: 0})
            return
        if self._controller is None or self._controller.rollout.id != active.id:
            self._controller = self._take_up(active)
        self._controller.tick()

    def _take_up(self, active: Rollout) -> Controller:
        controller = Controller(active, self._world, self._journal, self._watch)
        if active.progress.phase is not Phase.PENDING:
            controller.resume(self._unwatched)
        return controller

    def _champion_settled(self) -> bool:
        return self._champions.settled(self._journal.deployment(self._name))

    def _report_plane(self, error: Exception) -> None:
        if self._plane_lost or not self._supervisor.serving:
            return
        self._plane_lost = True
        body = {"message": str(error)}
        self._journal.append(self._name, None, "plane_unavailable", body, self._epoch)

    def _wait(self) -> None:
        """Sleep a tick, or less when a client has written to the journal."""
        deadline = time.monotonic() + self._watch.settings.tick_seconds
        while not self._stop and time.monotonic() < deadline and not self._journal.changed():
            time.sleep(_POLL_SECONDS)


def main(name: str) -> int:
    """Watch `name`; 0 at once if another daemon does."""
    with ExitStack() as stack:
        lock = stack.enter_context(places.lock(check_name(name)).open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        heartbeat = places.heartbeat(name)
        unwatched = _age(heartbeat)
        heartbeat.touch()
        journal = stack.enter_context(Journal(places.journal()))
        own = psutil.Process()
        token = os.environ.get(TOKEN_VARIABLE, "")
        journal.put_process(name, DAEMON, ProcessRef(own.pid, own.create_time(), token))
        daemon = Daemon(name, journal, stack, unwatched)
        signal.signal(signal.SIGTERM, daemon.stop)
        return daemon.run()


def _age(heartbeat: Path) -> float:
    """Seconds since a daemon last looked; 0 if none ever did."""
    try:
        return max(0.0, time.time() - heartbeat.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
