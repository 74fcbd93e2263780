"""Moves sums from memory to prometheus-client.

In one process this happens when the registry is collected. In the multiprocess mode another worker
may be scraped, so the sums are also moved once a second while they change, and by the worker that
answers /metrics.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

PUBLISH_SECONDS = 1.0
_Of = TypeVar("_Of", bound=Counter | Gauge | Histogram)
# Several models of a process have the same metrics, each under its own label.
_METRICS: WeakKeyDictionary[CollectorRegistry, dict[str, Any]] = WeakKeyDictionary()
_FIRST: WeakKeyDictionary[CollectorRegistry, list[Exposition]] = WeakKeyDictionary()


def _shared(registry: CollectorRegistry, name: str, make: Callable[[], _Of]) -> _Of:
    """Return the metric `name` of `registry`, which is made on first use."""
    known = _METRICS.setdefault(registry, {})
    if name not in known:
        known[name] = make()
    found: _Of = known[name]
    return found


class Exposition:
    """Calls `report` whenever the metrics of `registry` are to be up to date."""

    def __init__(self, registry: CollectorRegistry, report: Callable[[], None]) -> None:
        self._report = report
        self._lock = Lock()
        # A scrape may run on another thread than the event loop's.
        several = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        self._loop = asyncio.get_running_loop() if several else None
        # Whether a publication is scheduled, or needless.
        self.due = not several
        # A registry collects in order: the first one updates all of them.
        self._all = _FIRST.setdefault(registry, [])
        self._all.append(self)
        if self._all[0] is self:
            registry.register(self)

    def touch(self) -> None:
        """Publish within `PUBLISH_SECONDS`, or on the next scrape: a sum has changed."""
        if not self.due and self._loop is not None:
            self.due = True
            self._loop.call_later(PUBLISH_SECONDS, self._publish_due)

    def publish(self) -> None:
        """Publish now."""
        with self._lock:
            self._report()

    def describe(self) -> Iterable[Metric]:
        """No metrics of its own: a registry collects in order, and this one comes first."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return nothing; the metrics that are collected next are up to date."""
        for each in self._all:
            each.publish()
        return ()

    def _publish_due(self) -> None:
        self.due = False
        self.publish()


class CounterSink:
    """A counter with the fixed labels `fixed` and the variable ones named by `names`.

    With `gauge` it is exported as a gauge that only grows: the names of counters end in `_total`.
    """

    def __init__(
        self,
        name: str,
        text: str,
        fixed: Mapping[str, str],
        names: tuple[str, ...],
        registry: CollectorRegistry,
        *,
        gauge: bool = False,
    ) -> None:
        def make() -> Counter | Gauge:
            labels = (*fixed, *names)
            if gauge:
                return Gauge(name, text, labels, registry=registry, multiprocess_mode="sum")
            return Counter(name, text, labels, registry=registry)

        self._counter = _shared(registry, name, make)
        self._fixed = tuple(fixed.values())
        self._reported: dict[tuple[str, ...], float] = {}
        if not names:
            self.report({(): 0})

    def report(self, totals: Mapping[tuple[str, ...], float]) -> None:
        """Bring each label set up to its total."""
        for labels, total in totals.items():
            reported = self._reported.get(labels)
            if total != reported:
                self._counter.labels(*self._fixed, *labels).inc(total - (reported or 0))
                self._reported[labels] = total


class GaugeSink:
    """A gauge that is the sum over the live workers."""

    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], registry: CollectorRegistry
    ) -> None:
        def make() -> Gauge:
            names = tuple(labels)
            return Gauge(name, text, names, registry=registry, multiprocess_mode="livesum")

        gauge = _shared(registry, name, make)
        self._gauge = gauge.labels(*labels.values())

    def report(self, value: float) -> None:
        """Show `value`."""
        self._gauge.set(value)


class HistogramSink:
    """A histogram, or with `label` one for each value of that label."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        registry: CollectorRegistry,
        *,
        label: str | None = None,
        bounds: Sequence[float],
    ) -> None:
        names = (*labels, label) if label is not None else tuple(labels)
        self._histogram = _shared(
            registry, name, lambda: Histogram(name, text, names, buckets=bounds, registry=registry)
        )
        self._labels = tuple(labels.values())
        self._labelled = label is not None
        self._reported: dict[str, tuple[list[int], float]] = {}

    def report(self, label: str, counts: Sequence[int], total: float) -> None:
        """Bring the histogram up to `counts` values in each bucket, which sum up to `total`."""
        old_counts, old_total = self._reported.get(label, ([0] * len(counts), 0.0))
        new_counts = list(counts)
        labels = (*self._labels, label) if self._labelled else self._labels
        child = self._histogram.labels(*labels)
        # There is no public way to add many observations at once; a test checks these attributes.
        for value, new, old in zip(child._buckets, new_counts, old_counts, strict=True):  # noqa: SLF001
            if new != old:
                value.inc(new - old)
        if new_counts != old_counts:
            child._sum.inc(total - old_total)  # noqa: SLF001
            self._reported[label] = (new_counts, total)
