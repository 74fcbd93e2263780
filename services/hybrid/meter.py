"""What is counted of lookups: by result, how long they took, and what became of write-backs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.metrics.counts import Distribution
from services.metrics.exposition import CounterSink, Exposition, HistogramSink

HIT, MISS, STALE, FOREIGN, DOWN, JOINED = "hit", "miss", "stale", "foreign", "down", "joined"
WRITTEN, FAILED, DROPPED = "written", "failed", "dropped"
_SECONDS = (
    0.000005, 0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1,
)  # fmt: skip


class HybridMeter:
    """Counts in memory; made on the event loop that the worker runs."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._lookups: dict[tuple[str, ...], int] = {}
        self._backs: dict[tuple[str, ...], int] = {}
        self._seconds = Distribution(_SECONDS)
        self._exposition = Exposition(registry, self._tell)
        labels = {"model": model}
        self._lookup_sink = CounterSink(
            "mlctl_hybrid_lookups",
            "Entity keys asked for: 'hit', 'miss', 'stale', 'foreign' (no row of this model), or "
            "'down' if the store was; 'joined' ones waited for another request's run.",
            labels,
            ("result",),
            registry,
        )
        self._back_sink = CounterSink(
            "mlctl_hybrid_write_backs",
            "Answers of the model that were to be stored: 'written', 'failed' or 'dropped'.",
            labels,
            ("result",),
            registry,
        )
        self._seconds_sink = HistogramSink(
            "mlctl_hybrid_lookup_seconds",
            "Seconds that the lookups of a request took.",
            labels,
            registry,
            bounds=_SECONDS,
        )

    def looked_up(self, seconds: float) -> None:
        """Record one request's lookup."""
        self._seconds.observe(seconds)
        self._exposition.touch()

    def count(self, result: str, keys: int = 1) -> None:
        """Record what became of so many keys."""
        if keys:
            self._lookups[result,] = self._lookups.get((result,), 0) + keys

    def wrote(self, result: str, rows: int) -> None:
        """Record what became of so many answers to be stored."""
        self._backs[result,] = self._backs.get((result,), 0) + rows
        self._exposition.touch()

    def _tell(self) -> None:
        self._lookup_sink.tell(dict(self._lookups))
        self._back_sink.tell(dict(self._backs))
        self._seconds_sink.tell("", self._seconds.counts, self._seconds.total)
