"""The process that watches one deployment: `python -m mlctl.rollout.daemon.daemon NAME`.

It holds a lock for life, supervises the proxy and the live Bento, and ticks the active rollout.
Clients only write to the journal, which the daemon polls; so a client may die at any time.
The daemon's parent (`watch`) starts it again when it dies.
If the daemon dies, the proxy and the Bentos go on with the last weights until the next one.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import psutil

from mlctl.core.clock import Clock, SystemClock
from mlctl.core.garbage import rare_collection
from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.controller import Controller
from mlctl.rollout.daemon.recording import Recording
from mlctl.rollout.daemon.reporting.alias import WRITE_SECONDS, AliasSink
from mlctl.rollout.daemon.reporting.outbox import EventSink, OpenSink, Outbox, run_command
from mlctl.rollout.daemon.reporting.runs import RunsSink
from mlctl.rollout.daemon.reporting.telemetry import MetricsServer
from mlctl.rollout.daemon.reporting.webhooks import WebhookSink, notified, sink_of
from mlctl.rollout.daemon.restarter import seconds_unseen
from mlctl.rollout.daemon.scaler import Scaler
from mlctl.rollout.daemon.split_meter import SplitMeter
from mlctl.rollout.daemon.supervisor import Supervisor
from mlctl.rollout.daemon.vitals import Vitals
from mlctl.rollout.domain.interfaces import (
    TOTAL_WEIGHT,
    DataPlaneRejected,
    DataPlaneUnavailable,
    Launcher,
    Meter,
    MeteredDataPlane,
    TrafficSplit,
)
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.process_ref import DAEMON, ProcessRef
from mlctl.rollout.domain.spec import DeploymentSettings, Revision, Slot, check_name
from mlctl.rollout.domain.traffic.counts import Reading
from mlctl.rollout.drivers.local import logs, processes
from mlctl.rollout.drivers.local.fleet import Fleet
from mlctl.rollout.drivers.local.launcher import LocalLauncher
from mlctl.rollout.drivers.local.processes import TOKEN_VARIABLE
from mlctl.rollout.drivers.local.samples import sample_folder
from mlctl.rollout.drivers.proxies import edges_of, proxy_of
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal, StaleEpochError
from mlctl.rollout.journal.records import Deployment, Rollout, dumps

# How soon a command is seen. With 0.02 these polls took half of an idle daemon's CPU time.
_POLL_SECONDS = 0.05
# A replica that starts serves soon after it is ready.
_STARTING_SECONDS = 0.2
_MAX_ERRORS = 5


class AnswerMeter:
    """Counts the traffic by the proxy, and times generated answers by the servers' own metrics."""

    def __init__(self, proxy: Meter, fleet: Fleet, vitals: Vitals) -> None:
        self._proxy = proxy
        self._fleet = fleet
        self._vitals = vitals

    def read(self) -> Reading:
        """Return the proxy's reading, with the answers of both slots while they are polled."""
        if not self._vitals.metrics:
            return self._proxy.read()
        answers = {slot: self._vitals.answers(self._fleet.replicas(slot).values()) for slot in Slot}
        return replace(self._proxy.read(), answers=answers)


class Daemon:
    """Watch the deployment `name` until SIGTERM, or until another daemon takes over."""

    def __init__(
        self, name: str, journal: Journal, stack: ExitStack, unwatched_seconds: float
    ) -> None:
        directory = paths.directory(name)
        deployment = journal.deployment(name)
        self._name = name
        self._journal = journal
        self._heartbeat = paths.heartbeat(name)
        self._unwatched = unwatched_seconds
        self._epoch = journal.take_over(name)
        settings = deployment.settings
        proxy = proxy_of(directory, deployment.ports, settings, self._epoch)
        proxy.prepare(deployment.slot)  # now, so that a proxy that dies is started at once
        data_plane = stack.enter_context(proxy.data_plane())
        launcher = _launcher(directory / "logs", settings, data_plane, stack)
        clock = SystemClock()
        recording = _recording(directory, settings, clock)
        self._vitals = stack.enter_context(Vitals(settings.hung_seconds, settings.workers))
        self._fleet = Fleet(name, launcher, journal)
        meter = AnswerMeter(data_plane, self._fleet, self._vitals)
        self._context = DaemonContext(
            name,
            self._epoch,
            journal,
            settings,
            data_plane,
            meter,
            launcher,
            clock,
            edges_of(settings),
            recording,
        )
        self._logs = directory / "logs"
        self._supervisor = Supervisor(self._context, directory, proxy, self._vitals.hung)
        self._scaler = Scaler(self._context)
        self._recorded = ""
        self._split_meter = SplitMeter(self._context)
        self._answered = 0
        self._show(settings, stack)
        self._controller: Controller | None = None
        self._proxy_lost = False
        self._applied = 0
        self._stop = False

    def _show(self, settings: DeploymentSettings, stack: ExitStack) -> None:
        """Start the metrics and the outbox; neither delays a tick."""
        path, clock = paths.journal(), self._context.clock
        self._metrics = stack.enter_context(
            MetricsServer(self._name, settings, path, self._heartbeat, clock)
        )
        sinks = {**_sinks(self._name, settings), **self._webhooks()}
        self._outbox = stack.enter_context(Outbox(self._name, sinks, partial(Journal, path), clock))

    def _webhooks(self) -> dict[str, OpenSink]:
        """Return what opens the sink of each URL that gets notices now."""
        settings, clock = self._context.settings, self._context.clock

        def webhook(url: str, journal: Journal, _stop: threading.Event) -> EventSink:
            return WebhookSink(self._name, url, settings, journal, clock)

        rollouts = self._journal.rollouts(self._name)
        urls = notified(settings, rollouts, clock.wall())
        return {sink_of(url): partial(webhook, url) for url in urls}

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: finish this tick, then leave everything running."""
        self._stop = True

    def run(self) -> int:
        """Tick until stopped; return the exit code. Repeated errors end it, for a fresh process."""
        errors = 0
        while not self._stop:
            self._applied = self._journal.last_command(self._name)
            try:
                self._observe()
                errors = 0
            except StaleEpochError:
                return 0
            except Exception:  # noqa: BLE001 - one bad tick must not end the daemon; it is logged
                traceback.print_exc()
                errors += 1
                if errors == _MAX_ERRORS:
                    return 1
            self._heartbeat.touch()
            self._wait()
        return 0

    def _observe(self) -> None:
        deployment = self._journal.deployment(self._name)
        if deployment.epoch != self._epoch or not deployment.up:
            raise StaleEpochError(self._name)
        self._supervisor.ensure(deployment, self._journal.active(self._name))
        # In a cluster the kubelet restarts what dies.
        remote = deployment.settings.kubernetes is not None
        supervisor = self._supervisor
        served = (
            () if remote else (*supervisor.live.ready.values(), *supervisor.other.ready.values())
        )
        active = self._journal.active(self._name)
        timed = not remote and active is not None and active.spec.times_answers
        polled = served
        if timed:
            # The candidate's replicas are the rollout's; the supervisor does not know them.
            polled = tuple(each for slot in Slot for each in self._fleet.replicas(slot).values())
        self._vitals.watch(polled, metrics=timed or deployment.settings.autoscaled)
        self._scale(deployment)
        try:
            self._drive(deployment)
            self._proxy_lost = False
        except (DataPlaneUnavailable, DataPlaneRejected) as error:
            self._report_proxy(error)
        self._metrics.poll()
        self._rotate()

    def _scale(self, deployment: Deployment) -> None:
        if self._supervisor.serving:
            rollout = self._journal.active(self._name) is not None
            split, busiest = deployment.split, self._supervisor.live
            if split is not None and split.percent > TOTAL_WEIGHT / 2:
                busiest = self._supervisor.other
            loads = self._vitals.loads(busiest.ready.values())
            self._scaler.observe(deployment, loads, rollout=rollout)

    def _rotate(self) -> None:
        try:
            logs.rotate(self._logs)
        except OSError:  # a full disk must not end what still serves
            traceback.print_exc()

    def _drive(self, deployment: Deployment) -> None:
        """Tick the active rollout, or else hold the split, or all traffic on the live slot."""
        active = self._journal.active(self._name)
        if active is None:
            if self._controller is not None:
                self._controller = None
                gc.collect()  # its handlers are a cycle, and it may hold many MB of recorded rows
            slot, split = deployment.slot, deployment.split
            if split is None:
                self._context.data_plane.apply(TrafficSplit({slot: 100, slot.other: 0}))
            else:
                weights = split.weights(slot, ready=bool(self._supervisor.other.ready))
                self._context.data_plane.apply(TrafficSplit(weights, sticky=split.sticky))
                self._split_meter.observe(slot)
            self._record_traffic(deployment.live.digest, slot)
            return
        self._context.record.pause()
        if self._controller is None or self._controller.rollout.id != active.id:
            self._controller = self._take_up(active)
        self._controller.tick()

    def _record_traffic(self, digest: str, slot: Slot) -> None:
        """Record the live revision's traffic, as the reference of the next rollout."""
        if digest != self._recorded:
            self._context.record.forget()
            self._recorded = digest
        now = self._context.clock.monotonic()
        if self._context.record.due(now):
            totals = self._context.meter.read().totals[slot]
            self._context.record.add(totals, now)
            self._record_predictions(totals.requests)

    def _record_predictions(self, answered: int) -> None:
        """Record a share of the predictions while no rollout does, if the settings say so."""
        recording, share = self._context.recording, self._context.settings.record_share
        requests, self._answered = max(0, answered - self._answered), answered
        if recording is None:
            return
        if not share:
            recording.collect()
            return
        recording.keep = True
        recording.observe(requests, inputs=False, max_share=share)

    def _take_up(self, active: Rollout) -> Controller:
        self._journal.prune(self._name)
        self._outbox.add(self._webhooks())
        controller = Controller(active, self._context)
        if active.progress.phase is not RolloutPhase.PENDING:
            controller.resume(self._unwatched)
        return controller

    def _report_proxy(self, error: Exception) -> None:
        if self._proxy_lost or not self._supervisor.serving:
            return
        self._proxy_lost = True
        self._context.append("proxy_unavailable", {"message": str(error)})

    def _wait(self) -> None:
        """Wait for a tick, a client's command, or the end of a process that is to be replaced."""
        seconds = self._context.settings.tick_seconds
        if self._supervisor.live.starting:
            seconds = min(seconds, _STARTING_SECONDS)
        deadline = time.monotonic() + seconds
        while not self._stop and time.monotonic() < deadline:
            if self._journal.last_command(self._name) != self._applied:
                return
            if processes.wait_for_end(self._supervisor.running, _POLL_SECONDS):
                return


def _recording(directory: Path, settings: DeploymentSettings, clock: Clock) -> Recording | None:
    folder = None if settings.kubernetes else sample_folder(directory, settings)
    return None if folder is None else Recording(folder, clock, settings.keep_predictions_seconds)


def _launcher(
    logs: Path, settings: DeploymentSettings, data_plane: MeteredDataPlane, stack: ExitStack
) -> Launcher:
    if settings.kubernetes is not None:
        from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane
        from mlctl.rollout.drivers.kubernetes.launcher import KubernetesLauncher

        assert isinstance(data_plane, KubernetesDataPlane)
        return KubernetesLauncher(settings.kubernetes, data_plane, logs)
    launcher = LocalLauncher(logs, settings)
    stack.callback(launcher.close)
    return launcher


def _sinks(name: str, settings: DeploymentSettings) -> dict[str, OpenSink]:
    """Return what opens the sinks of the alias and of MLflow's runs."""

    def alias(journal: Journal, stop: threading.Event) -> EventSink:
        def write(revision: Revision) -> None:
            run_command(settings.champion, dumps(revision), stop, WRITE_SECONDS)

        return AliasSink(name, journal, write)

    def runs(journal: Journal, stop: threading.Event) -> EventSink:
        return RunsSink(name, settings.runs, journal, stop)

    return {AliasSink.name: alias, RunsSink.name: runs}


def main(name: str) -> int:
    """Watch `name`; 0 at once if another daemon does."""
    with ExitStack() as stack:
        lock = stack.enter_context(paths.lock(check_name(name)).open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        heartbeat = paths.heartbeat(name)
        unwatched = seconds_unseen(heartbeat)
        heartbeat.touch()
        journal = stack.enter_context(Journal(paths.journal()))
        own = psutil.Process()
        token = os.environ.get(TOKEN_VARIABLE, "")
        journal.put_process(name, DAEMON, ProcessRef(own.pid, own.create_time(), token))
        daemon = Daemon(name, journal, stack, unwatched)
        signal.signal(signal.SIGTERM, daemon.stop)
        return daemon.run()


if __name__ == "__main__":
    with rare_collection():
        ended = main(sys.argv[1])
    sys.exit(ended)
