"""Metrics of lookups: keys by result, and the seconds that lookups took."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from mlctl.services.online.metrics.counts import Distribution
from mlctl.services.online.metrics.exposition import CounterSink, Exposition, HistogramSink

HIT, MISS, STALE, FOREIGN, DOWN = "hit", "miss", "stale", "foreign", "down"
_SECONDS = (
    0.000005, 0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1,
)  # fmt: skip


class PrecomputedMetrics:
    """Counts in memory; create it on the worker's event loop."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._lookups: dict[tuple[str, ...], int] = {}
        self._seconds = Distribution(_SECONDS)
        self._exposition = Exposition(registry, self._report)
        labels = {"model": model}
        self._lookup_sink = CounterSink(
            "mlctl_precomputed_lookups",
            "Keys that were looked up, by `result`: `hit`, `miss`, `stale` (too old), `foreign` "
            "(no row of this model) or `down` (the store is unavailable).",
            labels,
            ("result",),
            registry,
        )
        self._seconds_sink = HistogramSink(
            "mlctl_precomputed_lookup_seconds",
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
        """Add `keys` keys to `result`."""
        if keys:
            self._lookups[result,] = self._lookups.get((result,), 0) + keys

    def _report(self) -> None:
        self._lookup_sink.report(dict(self._lookups))
        self._seconds_sink.report("", self._seconds.counts, self._seconds.total)
