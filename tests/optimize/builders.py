"""Measured variants with numbers of a test's choice."""

from __future__ import annotations

from optimize.metrics.bootstrap import Estimate
from optimize.metrics.latency import BatchLatency
from optimize.metrics.parity import Parity
from optimize.metrics.scores import MetricResult
from optimize.variant import Measured, Variant


def latency(batch: int, median: float, spread: float = 0.0) -> BatchLatency:
    return BatchLatency(
        batch=batch,
        runs=10,
        median_ms=median,
        q1_ms=max(median - spread, 0.0),
        q3_ms=median + spread,
        p95_ms=median + 2 * spread,
    )


def variant(
    recipe: str,
    *,
    drop: float | None = 0.0,
    ms: float = 1.0,
    spread: float = 0.0,
    batch_ms: float = 8.0,
    size: int = 1000,
    agreement: float | None = 1.0,
    cosine: float = 1.0,
    bound: float = 0.0,
    timed: bool = True,
    batched: bool = True,
) -> Variant:
    """A measured variant; the upper bound of its `drop` is higher by `bound`.

    One that is not `batched` answers and is timed one row at a time.
    """
    latencies = (latency(1, ms, spread), latency(8, batch_ms, spread))[: 1 + batched]
    score = None
    if drop is not None:
        estimate = Estimate(drop, drop - bound, drop + bound, 0.95)
        score = MetricResult(reference=0.9, value=0.9 - drop, drop=estimate)
    measured = Measured(
        rows=100,
        opset=20,
        size_bytes=size,
        parity=Parity(0.0, 0.0, cosine, agreement),
        score=score,
        latency=latencies if timed else (),
        row_independent=batched,
    )
    return Variant(recipe, "fp32", measured)


def failed(recipe: str) -> Variant:
    return Variant(recipe, "int8", None, failure="no kernel")
