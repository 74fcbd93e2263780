"""Liveness and load of the Bentos, polled in a thread so that no tick waits for them.

A Bento is hung when it says so itself (`/v2/health/live` answers 503, which its model's watch
decides), or when it does not answer several polls over a long time. A busy one
answers late, but it answers.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from mlctl.bundle.latency import (
    FIRST_TOKEN_EDGES_MS,
    TOKEN_EDGES_MS,
    TPOT_METRIC,
    TTFT_METRIC,
)
from mlctl.core.errors import MlctlError
from mlctl.core.tokens import authorization
from mlctl.rollout.domain.interfaces import RunningRevision
from mlctl.rollout.domain.traffic.autoscale import ReplicaLoad
from mlctl.rollout.domain.traffic.counts import AnswerTimes, Totals

_POLL_SECONDS = 1.0
_TIMEOUT = 5.0
# Of several workers one answers each question, so what says "hung" need not come in a row.
_HUNG_ANSWERS = 3
_HUNG_ANSWER_SECONDS = 60.0
_SILENT_POLLS = 3
_QUEUE = "mlctl_queue_rows"
_RUNS = "mlctl_infer_seconds"


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the answers of one process say so far; times in seconds."""

    silent_since: float | None = None
    silent_polls: int = 0
    confessions: tuple[float, ...] = ()

    def beat(self, status: int | None, now: float) -> Pulse:
        """After one question: its HTTP status, or None for no answer."""
        if status is None:
            since = now if self.silent_since is None else self.silent_since
            return replace(self, silent_since=since, silent_polls=self.silent_polls + 1)
        recent = tuple(at for at in self.confessions if now - at < _HUNG_ANSWER_SECONDS)
        confesses = status == httpx.codes.SERVICE_UNAVAILABLE
        return Pulse(confessions=(*recent, now) if confesses else recent)

    def hung(self, now: float, seconds: float) -> bool:
        """Whether only a restart helps, if `seconds` of silence mean that."""
        if len(self.confessions) >= _HUNG_ANSWERS:
            return True
        silent = self.silent_since is not None and now - self.silent_since >= seconds
        return silent and self.silent_polls >= _SILENT_POLLS


@dataclass(frozen=True, slots=True)
class Counters:
    """One scrape: when, the rows that wait, and the seconds of all batches so far."""

    at: float
    queue_rows: float
    ran: float
    answers: AnswerTimes = field(default_factory=AnswerTimes)

    def load(self, before: Counters, workers: int) -> ReplicaLoad:
        """The load per worker since `before`."""
        busy = (self.ran - before.ran) / max(self.at - before.at, 1e-9) / workers
        return ReplicaLoad(self.queue_rows / workers, min(max(busy, 0.0), 1.0))


def read_counters(text: str, at: float) -> Counters | None:
    """The counters in a Bento's /metrics, over all its models; None if they are not there."""
    queued, ran = None, 0.0
    first, each = _Histogram(FIRST_TOKEN_EDGES_MS), _Histogram(TOKEN_EDGES_MS)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _QUEUE:
                queued = (queued or 0.0) + sample.value
            elif sample.name == f"{_RUNS}_sum":
                ran += sample.value
            elif sample.name == f"{TTFT_METRIC}_bucket":
                first.add(sample.labels["le"], sample.value)
            elif sample.name == f"{TPOT_METRIC}_bucket":
                each.add(sample.labels["le"], sample.value)
    answers = AnswerTimes(first.totals, each.totals)
    return None if queued is None else Counters(at, queued, ran, answers)


class _Histogram:
    """A histogram of seconds in /metrics, summed over models, at edges in milliseconds."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts: dict[float, int] = {}

    def add(self, bound: str, count: float) -> None:
        """Add the bucket of values up to `bound` seconds."""
        edge = round(float(bound) * 1000, 3)
        self._counts[edge] = self._counts.get(edge, 0) + int(count)

    @property
    def totals(self) -> Totals:
        """The values within each edge, and all of them; nothing if there is no such metric."""
        if not self._counts:
            return Totals()
        within = tuple(self._counts.get(edge, 0) for edge in self._edges)
        return Totals(timed=self._counts.get(math.inf, 0), within=within)


class Vitals:
    """Polls the given processes once a second each until closed."""

    def __init__(self, hung_seconds: float, workers: int) -> None:
        self._hung_seconds = hung_seconds
        self._workers = workers
        self.metrics = False
        self._lock = threading.Lock()
        self._ports: dict[str, int] = {}
        self._pulses: dict[str, Pulse] = {}
        self._counters: dict[str, Counters] = {}
        self._loads: dict[str, ReplicaLoad] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def watch(self, served: Iterable[RunningRevision], *, metrics: bool) -> None:
        """Poll these and no others; their loads and times of answers too with `metrics`."""
        ports = {each.process.token: each.endpoint.http for each in served}
        with self._lock:
            self._ports, self.metrics = ports, metrics
            for polled in (self._pulses, self._counters, self._loads):
                for token in polled.keys() - ports.keys():
                    del polled[token]

    def hung(self, served: RunningRevision) -> bool:
        """Whether the process needs a restart."""
        with self._lock:
            pulse = self._pulses.get(served.process.token, Pulse())
        return pulse.hung(time.monotonic(), self._hung_seconds)

    def answers(self, served: Iterable[RunningRevision]) -> AnswerTimes:
        """Return the times of all answers that these have generated so far."""
        with self._lock:
            found = [
                self._counters[each.process.token].answers
                for each in served
                if each.process.token in self._counters
            ]
        total = AnswerTimes()
        for each in found:
            total = total.plus(each)
        return total

    def loads(self, served: Iterable[RunningRevision]) -> tuple[ReplicaLoad, ...]:
        """Return the loads of these that were measured so far."""
        tokens = [each.process.token for each in served]
        with self._lock:
            return tuple(self._loads[token] for token in tokens if token in self._loads)

    def _run(self) -> None:
        asyncio.run(self._poll_all())

    async def _poll_all(self) -> None:
        # A connection for each question: the workers of one process take turns.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, limits=limits) as client:
            while not self._closed.is_set():
                with self._lock:
                    ports = dict(self._ports)
                polls = (self._poll(client, *each) for each in ports.items())
                pause = asyncio.to_thread(self._closed.wait, _POLL_SECONDS)
                await asyncio.gather(*polls, pause)

    async def _poll(self, client: httpx.AsyncClient, token: str, port: int) -> None:
        status = await _status(client, f"http://127.0.0.1:{port}/v2/health/live")
        counters = await _counters(client, port) if self.metrics and status else None
        with self._lock:
            if token not in self._ports:
                return
            pulse = self._pulses.get(token, Pulse())
            self._pulses[token] = pulse.beat(status, time.monotonic())
            before = self._counters.get(token)
            if counters is None:
                self._loads.pop(token, None)
                return
            self._counters[token] = counters
            if before is not None:
                self._loads[token] = counters.load(before, self._workers)


async def _status(client: httpx.AsyncClient, url: str) -> int | None:
    try:
        return (await client.get(url)).status_code
    except httpx.TransportError:
        return None


async def _counters(client: httpx.AsyncClient, port: int) -> Counters | None:
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        answer = await client.get(url, headers=authorization())
        return read_counters(answer.text, time.monotonic())
    except (httpx.TransportError, MlctlError, ValueError):
        return None
