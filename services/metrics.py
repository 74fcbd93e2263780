"""Counters and histograms on BentoML's /metrics.

BentoML's workers run prometheus-client in its multiprocess mode, where each
observation costs microseconds: so one counter per request, everything else once per batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

OK = "ok"
GONE = "gone"
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One batch: its `rows`, the longest wait in it, and the seconds the model ran."""

    rows: int
    queue_seconds: float
    infer_seconds: float


class Metrics:
    """The metrics of one model in one worker."""

    def __init__(self, model: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._requests = Counter(
            "mlctl_requests",
            "Requests by protocol and outcome ('ok', 'gone' or an error code).",
            ("model", "protocol", "outcome"),
            registry=registry,
        )
        self._model = model
        self._outcomes: dict[tuple[str, str], Counter] = {}
        self._rows = _histogram("mlctl_batch_rows", "Rows of each batch.", _ROWS, registry, model)
        self._queue = _histogram(
            "mlctl_queue_seconds", "Longest wait in each batch.", _SECONDS, registry, model
        )
        self._infer = _histogram(
            "mlctl_infer_seconds", "Seconds each batch ran.", _SECONDS, registry, model
        )
        self._depth = Gauge(
            "mlctl_queue_rows",
            "Rows waiting now, over all workers.",
            ("model",),
            registry=registry,
            multiprocess_mode="livesum",
        ).labels(model)

    def request(self, protocol: str, outcome: str) -> None:
        """Count one request of `protocol` ("http", "grpc", "predict") by its outcome."""
        child = self._outcomes.get((protocol, outcome))
        if child is None:
            child = self._requests.labels(self._model, protocol, outcome)
            self._outcomes[protocol, outcome] = child
        child.inc()

    def batch(self, stats: BatchStats) -> None:
        """Record one finished batch."""
        self._rows.observe(stats.rows)
        self._queue.observe(stats.queue_seconds)
        self._infer.observe(stats.infer_seconds)

    def queue_rows(self, rows: int) -> None:
        """Record how many rows wait."""
        self._depth.set(rows)


def _histogram(
    name: str, text: str, buckets: tuple[float, ...], registry: CollectorRegistry, model: str
) -> Histogram:
    return Histogram(name, text, ("model",), buckets=buckets, registry=registry).labels(model)
