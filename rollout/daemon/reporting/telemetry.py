"""A deployment's rollouts as Prometheus metrics, read from the journal at each scrape.

The daemon serves them on loopback; a scrape reads the journal and does not reach into the daemon.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mlctl.core.clock import Clock
from mlctl.rollout.daemon.reporting.webhooks import host_of, notified, sink_of
from mlctl.rollout.daemon.restarter import seconds_unseen
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, candidate_weight
from mlctl.rollout.domain.spec import LOOPBACK, DeploymentSettings, Outcome, Slot
from mlctl.rollout.domain.traffic.split import SplitRecord
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import TICK, Deployment, JournalEvent, Rollout

IDLE = "idle"
_RETRY_SECONDS = 10.0
_SIDES = ("candidate", "live")
# The class, help text and label besides `deployment` of each metric.
METRICS: Mapping[str, tuple[Any, str, str]] = {
    "mlctl_rollout_weight": (GaugeMetricFamily, "Percent of the requests by `slot`.", "slot"),
    "mlctl_rollout_phase": (
        GaugeMetricFamily,
        "1 for the current `phase`; `idle` without a rollout.",
        "phase",
    ),
    "mlctl_rollout_e_value": (
        GaugeMetricFamily,
        "Evidence against the candidate by `gate`; at the threshold it is rolled back.",
        "gate",
    ),
    "mlctl_rollout_proof_value": (
        GaugeMetricFamily,
        "Evidence that a limit is kept, by `gate`; at the threshold it is proved.",
        "gate",
    ),
    "mlctl_rollout_threshold": (GaugeMetricFamily, "1/alpha of the rollout in progress.", ""),
    "mlctl_rollout_requests": (
        CounterMetricFamily,
        "Requests that the gates counted by `slot`, since the daemon started.",
        "slot",
    ),
    "mlctl_rollout_errors": (CounterMetricFamily, "Those of them that failed.", "slot"),
    "mlctl_rollout_ended": (CounterMetricFamily, "Ended rollouts by `outcome`.", "outcome"),
    "mlctl_split_requests": (
        CounterMetricFamily,
        "Requests of a split by `slot`, since it began.",
        "slot",
    ),
    "mlctl_split_errors": (CounterMetricFamily, "Those of them that failed.", "slot"),
    "mlctl_split_p50_ms": (GaugeMetricFamily, "Upper bound of their median, by `slot`.", "slot"),
    "mlctl_split_p99_ms": (GaugeMetricFamily, "Upper bound of their p99, by `slot`.", "slot"),
    "mlctl_rollout_webhook_failures": (
        GaugeMetricFamily,
        "Failed deliveries in a row by `host`.",
        "host",
    ),
    "mlctl_rollout_last_tick_seconds": (GaugeMetricFamily, "Seconds since the last tick.", ""),
}
_COUNTED = ("requests", "errors")


class RolloutCollector(Collector):
    """The metrics of the deployment `name`. Requests are counted from its first use on."""

    def __init__(self, name: str, journal: Path, heartbeat: Path) -> None:
        self._name = name
        self._journal = journal
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Slot]] = Counter()
        with Journal(journal) as opened:
            self._read = opened.last_seq()

    def collect(self) -> Iterator[Metric]:
        with self._lock, Journal(self._journal) as journal:
            deployment, active = journal.deployment(self._name), journal.active(self._name)
            rollouts = journal.rollouts(self._name)
            self._count(journal, {each.id: each for each in rollouts})
            last = _last_tick(journal, active)
            urls = notified(deployment.settings, rollouts, time.time())
            failing = _failing(journal, self._name, urls)
            record = journal.split_record(self._name)
        phase = active.progress.phase.value if active else IDLE
        phases = ((each, float(each == phase)) for each in (IDLE, *(p.value for p in RolloutPhase)))
        weights = _weights(deployment, active)
        yield self._metric("mlctl_rollout_weight", weights)
        yield self._metric("mlctl_rollout_phase", phases)
        yield from self._evidence(active, last)
        yield from self._counters(rollouts)
        if deployment.split is not None:
            yield from self._split(deployment.slot, record)
        yield self._metric("mlctl_rollout_webhook_failures", failing)
        unseen = [(self._name, seconds_unseen(self._heartbeat))]
        yield self._metric("mlctl_rollout_last_tick_seconds", unseen)

    def _evidence(self, active: Rollout | None, last: JournalEvent | None) -> Iterator[Metric]:
        """Yield the evidence while a rollout is under way, so that an ended one raises no alarm."""
        body = last.body if last else {}
        threshold = [(self._name, 1.0 / active.spec.alpha)] if active else []
        yield self._metric("mlctl_rollout_e_value", body.get("e_values", {}).items())
        yield self._metric("mlctl_rollout_proof_value", body.get("proofs", {}).items())
        yield self._metric("mlctl_rollout_threshold", threshold)

    def _counters(self, rollouts: Iterable[Rollout]) -> Iterator[Metric]:
        for what in _COUNTED:
            counts = ((slot, self._counts[what, slot]) for slot in Slot)
            yield self._metric(f"mlctl_rollout_{what}", counts)
        ended = Counter(rollout.outcome for rollout in rollouts if rollout.outcome)
        outcomes = ((outcome, ended[outcome]) for outcome in Outcome)
        yield self._metric("mlctl_rollout_ended", outcomes)

    def _split(self, live: Slot, record: SplitRecord) -> Iterator[Metric]:
        """Yield what both slots did since the split began."""
        slots = ((live.value, record.live), (live.other.value, record.other))
        requests = [(slot, each.requests) for slot, each in slots]
        yield self._metric("mlctl_split_requests", requests)
        yield self._metric("mlctl_split_errors", [(slot, each.errors) for slot, each in slots])
        for name, share in (("mlctl_split_p50_ms", 0.5), ("mlctl_split_p99_ms", 0.99)):
            found = [(slot, each.quantile(share)) for slot, each in slots]
            yield self._metric(name, [(slot, ms) for slot, ms in found if ms is not None])

    def _count(self, journal: Journal, rollouts: dict[int, Rollout]) -> None:
        until = journal.last_seq()
        for event in journal.events_between(self._name, self._read, until, (TICK,)):
            slot = rollouts[event.rollout or 0].slot
            for side, of in zip(_SIDES, (slot, slot.other), strict=True):
                for what in _COUNTED:
                    self._counts[what, of] += event.body["window"][side][what]
        self._read = until

    def _metric(self, name: str, values: Iterable[tuple[str, float]]) -> Metric:
        """Return a metric of METRICS with one value per label, or one of the deployment alone."""
        family, help_text, label = METRICS[name]
        labels = ["deployment", label] if label else ["deployment"]
        metric: Metric = family(name, help_text, labels=labels)
        for key, value in values:
            metric.add_metric([self._name, key][: len(labels)], value)  # type: ignore[attr-defined]
        return metric


class MetricsServer:
    """Serves a deployment's metrics at the port of its settings, if they have one."""

    def __init__(
        self, name: str, settings: DeploymentSettings, journal: Path, heartbeat: Path, clock: Clock
    ) -> None:
        self._port = settings.metrics_port
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(RolloutCollector(name, journal, heartbeat))
        self._running: tuple[Any, threading.Thread] | None = None
        self._not_before = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join()

    def poll(self) -> None:
        """Serve, unless that is done already; a port that is taken is tried again later."""
        now = self._clock.monotonic()
        if self._port is None or self._running is not None or now < self._not_before:
            return
        try:
            self._running = start_http_server(self._port, LOOPBACK, self._registry)
        except OSError as error:
            print(f"no metrics on port {self._port}: {error.strerror}", file=sys.stderr, flush=True)
            self._not_before = now + _RETRY_SECONDS


def _weights(deployment: Deployment, active: Rollout | None) -> list[tuple[str, float]]:
    if active is None and deployment.split is not None:
        shares = deployment.split.weights(deployment.slot, ready=True)
    elif active is None:
        shares = {deployment.slot: 100, deployment.slot.other: 0}
    else:
        weight = candidate_weight(active.progress, active.spec)
        shares = {active.slot: weight, active.slot.other: 100 - weight}
    return [(slot.value, float(shares[slot])) for slot in Slot]


def _last_tick(journal: Journal, active: Rollout | None) -> JournalEvent | None:
    return None if active is None else journal.newest(active.deployment, TICK, active.id)


def _failing(journal: Journal, name: str, urls: Iterable[str]) -> list[tuple[str, float]]:
    """Return the failures in a row of each webhook."""
    return [(host_of(url), float(journal.delivery(name, sink_of(url)).failures)) for url in urls]
