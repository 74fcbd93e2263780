"""Metrics of one model: plain numbers in memory, moved to prometheus-client once a second.

prometheus-client's own observations cost microseconds each in the multiprocess mode of BentoML's
workers. An answered request appends its times to a list here, which is added to the histograms
many requests at a time.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.services.model.features import FeatureLookup
from mlctl.services.online.metrics.exposition import (
    CounterSink,
    Exposition,
    GaugeSink,
    HistogramSink,
)
from mlctl.services.online.metrics.tally import Tally
from mlctl.services.online.metrics.triton import TritonNames

OK = "ok"
GONE = "gone"
# The outcomes that are no rejection: answers, disconnected clients, missed deadlines (which have a
# counter of their own) and errors of the server.
_NOT_REJECTED = frozenset({OK, GONE, "deadline_exceeded", "internal"})
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
_STAGE_SECONDS = (0.00001, 0.000025, 0.00005, *_SECONDS)
_REQUEST_SECONDS = tuple(edge / 1000.0 for edge in SERVED_EDGES_MS)
_PARTS = ("features", "preprocess", "postprocess")
# So many answered requests are added to the histograms at once, which takes half a millisecond.
_FOLD = 1024
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One batch: its `rows`, the longest wait in it, and the seconds the model ran.

    `streamed` if it was one request alone, all of whose answer was made in pieces.
    """

    rows: int
    queue_seconds: float
    infer_seconds: float
    streamed: bool = False


class Distribution:
    """A histogram in memory: `counts[i]` values are at most `bounds[i]`, the last are larger."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: np.ndarray) -> None:
        """Count many values."""
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = [old + new for old, new in zip(self.counts, found.tolist(), strict=True)]
        self.total += float(values.sum())


class Metrics:
    """The metrics of one model in one worker. Made on the event loop that the worker runs.

    `transform` returns for how many seconds each function of its transform ran, on any thread;
    `lookups` are its lookups of features, if it has any. `by_client` is whether clients have names.
    """

    def __init__(
        self,
        model: str,
        registry: CollectorRegistry = REGISTRY,
        transform: Callable[[], Mapping[str, float]] = dict,
        lookups: FeatureLookup | None = None,
        *,
        by_client: bool = False,
    ) -> None:
        self._by_client = by_client
        self._feature_lookups = lookups
        self._transform = transform
        self._warm_up = transform()
        self._outcomes: dict[tuple[str, str, str], int] = {}
        self._rows = Distribution(_ROWS)
        self._queue = Distribution(_SECONDS)
        self._infer = Distribution(_SECONDS)
        self._request = Distribution(_REQUEST_SECONDS)
        self._first_piece = Distribution(_SECONDS)
        names = ("parse", "queue", "infer", "serialize")
        self._stages = {name: Distribution(_STAGE_SECONDS) for name in names}
        # The times of answered requests that are not in the histograms yet, by protocol and client.
        self._finished: defaultdict[tuple[str, str], deque[tuple[float, float, float, float]]]
        self._finished = defaultdict(deque)
        self._lock = Lock()
        self._sizes: dict[int, tuple[int, float]] = {}
        # Their stages are no part of the histograms: an answer in pieces may take any time.
        self._streams = Distribution(())
        self._streams_queue = 0.0
        self._last = 0.0
        self._waiting = 0
        self._hung = False
        self._exposition = Exposition(registry, self._report)
        self._make_counters(model, registry)
        self._make_histograms(model, registry)
        self._make_gauges(model, registry)
        self._triton = TritonNames.of(model, registry)
        self._exposition.touch()  # a worker counts before its first request

    def request(self, protocol: str, outcome: str, client: str = "") -> None:
        """Count a request of `protocol` ("http", "grpc", "predict") by its outcome and client."""
        key = (protocol, outcome, client)
        self._outcomes[key] = self._outcomes.get(key, 0) + 1
        if not self._exposition.due:
            self._exposition.touch()

    def answered(
        self,
        protocol: str,
        parse: float,
        queue: float,
        infer: float,
        serialize: float,
        client: str = "",
    ) -> None:
        """Count an answered request and the seconds that it spent in each stage."""
        finished = self._finished[protocol, client]
        finished.append((parse, queue, infer, serialize))
        if len(finished) >= _FOLD:
            self._fold()
        if not self._exposition.due:
            self._exposition.touch()

    def _fold(self) -> None:
        """Add the times of answered requests to the histograms; a scrape may run on any thread."""
        with self._lock:
            for (protocol, client), finished in list(self._finished.items()):
                rows = [finished.popleft() for _ in range(len(finished))]
                if not rows:
                    continue
                key = (protocol, OK, client)
                self._outcomes[key] = self._outcomes.get(key, 0) + len(rows)
                times = np.array(rows)
                for stage, values in zip(self._stages.values(), times.T, strict=True):
                    stage.observe_all(values)
                self._request.observe_all(times.sum(axis=1))

    def batch(self, stats: BatchStats) -> None:
        """Record one finished batch."""
        self._rows.observe(stats.rows)
        self._queue.observe(stats.queue_seconds)
        self._infer.observe(stats.infer_seconds)
        count, seconds = self._sizes.get(stats.rows, (0, 0.0))
        self._sizes[stats.rows] = (count + 1, seconds + stats.infer_seconds)
        if stats.streamed:
            self._streams.observe(stats.infer_seconds)
            self._streams_queue += stats.queue_seconds
        self._last = time.time()
        if not self._exposition.due:
            self._exposition.touch()

    def first_piece(self, seconds: float) -> None:
        """Record the seconds from a stream's request to its first piece."""
        self._first_piece.observe(seconds)
        self._exposition.touch()

    def queue_rows(self, rows: int) -> None:
        """Record how many rows wait."""
        self._waiting = rows
        if not self._exposition.due:
            self._exposition.touch()

    def hung(self) -> None:
        """Record that the model hangs; safe on any thread."""
        self._hung = True

    def tally(self) -> Tally:
        """Return everything that was counted so far, as one value."""
        self._fold()
        outcomes = dict(self._outcomes)  # a scrape may run on another thread
        failed = sum(count for key, count in outcomes.items() if key[1] not in {OK, GONE})
        return Tally(
            answered=sum(self._stages["infer"].counts) + sum(self._streams.counts),
            failed=failed,
            parse=self._stages["parse"].total,
            queue=self._stages["queue"].total + self._streams_queue,
            infer=self._stages["infer"].total + self._streams.total,
            serialize=self._stages["serialize"].total,
            batches=dict(self._sizes),
            last=self._last,
        )

    def publish(self) -> None:
        """Push all counts to prometheus-client."""
        self._exposition.publish()

    def _make_counters(self, model: str, registry: CollectorRegistry) -> None:
        self._request_sink = CounterSink(
            "mlctl_requests",
            "Requests by `protocol` (`http`, `grpc`, `predict`) and `outcome` (`ok`, `gone`: the "
            "client left, or an error code); with tokens also by `client`.",
            {"model": model},
            ("protocol", "outcome", "client") if self._by_client else ("protocol", "outcome"),
            registry,
        )
        self._rejection_sink = CounterSink(
            "mlctl_rejections",
            "Rejected requests by `reason`, an error code.",
            {"model": model},
            ("reason",),
            registry,
        )
        self._miss_sink = CounterSink(
            "mlctl_deadline_misses",
            "Requests whose deadline had passed before their answer was ready.",
            {"model": model},
            (),
            registry,
        )
        self._transform_sink = CounterSink(
            "mlctl_transform_seconds",
            "Seconds in your transform by `part`: `preprocess`, `postprocess`, and `features` for "
            "lookups.",
            {"model": model},
            ("part",),
            registry,
        )
        self._lookup_sink = CounterSink(
            "mlctl_feature_lookups",
            "Rows whose features were looked up, by `result`: `hit`, or `miss` where all have "
            "their defaults.",
            {"model": model},
            ("result",),
            registry,
        )

    def _make_histograms(self, model: str, registry: CollectorRegistry) -> None:
        batch = {
            "mlctl_batch_rows": ("Rows of each batch.", self._rows),
            "mlctl_queue_seconds": ("Longest wait in each batch.", self._queue),
            "mlctl_infer_seconds": ("Seconds each batch ran.", self._infer),
            "mlctl_request_seconds": (
                "Seconds of each answered request, all stages together.",
                self._request,
            ),
            "mlctl_first_piece_seconds": (
                "Seconds to the first part of a streaming response.",
                self._first_piece,
            ),
        }
        self._histograms = [
            (
                HistogramSink(name, text, {"model": model}, registry, bounds=values.bounds),
                {"": values},
            )
            for name, (text, values) in batch.items()
        ]
        stages = HistogramSink(
            "mlctl_stage_seconds",
            "Seconds of each answered request by `stage`: `parse`, `queue`, `infer`, `serialize`.",
            {"model": model},
            registry,
            label="stage",
            bounds=_STAGE_SECONDS,
        )
        self._histograms.append((stages, self._stages))

    def _make_gauges(self, model: str, registry: CollectorRegistry) -> None:
        labels = {"model": model}
        self._depth_sink = GaugeSink(
            "mlctl_queue_rows",
            "Rows that wait now, over all workers: the signal to scale by.",
            labels,
            registry,
        )
        self._worker_sink = GaugeSink(
            "mlctl_workers", "Workers that serve the model.", labels, registry
        )
        self._hung_sink = GaugeSink(
            "mlctl_hung_workers", "Workers whose model hangs.", labels, registry
        )

    def _report(self) -> None:
        self._fold()
        outcomes = dict(self._outcomes)
        labels = 3 if self._by_client else 2  # without names of clients all are empty
        self._request_sink.report({key[:labels]: count for key, count in outcomes.items()})
        rejected: dict[tuple[str, ...], int] = {}
        missed = 0
        for (_, outcome, _), count in outcomes.items():
            if outcome not in _NOT_REJECTED:
                rejected[outcome,] = rejected.get((outcome,), 0) + count
            missed += count * (outcome == "deadline_exceeded")
        self._rejection_sink.report(rejected)
        self._miss_sink.report({(): missed})
        spent = self._transform()
        self._transform_sink.report(
            {(part,): spent.get(part, 0.0) - self._warm_up.get(part, 0.0) for part in _PARTS}
        )
        if (lookups := self._feature_lookups) is not None:
            missed = lookups.missed
            self._lookup_sink.report({("hit",): lookups.rows - missed, ("miss",): missed})
        for sink, values in self._histograms:
            for label, distribution in values.items():
                sink.report(label, distribution.counts, distribution.total)
        self._depth_sink.report(self._waiting)
        self._worker_sink.report(1)
        self._hung_sink.report(int(self._hung))
        self._triton.report(self.tally())
