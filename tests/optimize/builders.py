"""Measured variants with numbers of a test's choice."""

from __future__ import annotations

import random

from mlctl.bundle.output_kinds import OutputKind
from mlctl.optimize.metrics.bootstrap import Estimate
from mlctl.optimize.metrics.latency import BatchLatency
from mlctl.optimize.metrics.parity import OutputParity, Parity
from mlctl.optimize.metrics.scores import MetricResult
from mlctl.optimize.variants.variant import Measured, Variant


def latency(batch: int, median: float, spread: float = 0.0, seed: str = "") -> BatchLatency:
    """Nine rounds with quartiles `spread` ms from the median, in an order of their own."""
    samples = [max(median - spread, median / 100), median, median + spread] * 3
    random.Random(seed).shuffle(samples)
    return BatchLatency(batch, tuple(samples))


def parity(
    cosine: float = 1.0,
    agreement: float | None = 1.0,
    relative_l2: float = 0.0,
    *names: str,
    varies: bool = True,
) -> Parity:
    kind = OutputKind.NUMBERS if agreement is None else OutputKind.CLASS_SCORES
    output = OutputParity(kind, 0.0, relative_l2, cosine, agreement, varies=varies)
    return Parity(dict.fromkeys(names or ("y",), output))


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
    relative_l2: float = 0.0,
    bound: float = 0.0,
    timed: bool = True,
    batched: bool = True,
) -> Variant:
    """A measured variant; the upper bound of its `drop` is higher by `bound`.

    One that is not `batched` answers and is timed one row at a time.
    """
    both = latency(1, ms, spread, recipe), latency(8, batch_ms, spread, recipe)
    score = None
    if drop is not None:
        estimate = Estimate(drop, drop - bound, drop + bound, 0.95)
        score = MetricResult(reference=0.9, value=0.9 - drop, drop=estimate, outputs=("y",))
    measured = Measured(
        rows=100,
        opset=20,
        size_bytes=size,
        parity=parity(cosine, agreement, relative_l2),
        score=score,
        latency=both[: 1 + batched] if timed else (),
        row_independent=batched,
    )
    return Variant(recipe, "fp32", measured)


def failed(recipe: str) -> Variant:
    return Variant(recipe, "int8", None, failure="no kernel")


def skipped(recipe: str) -> Variant:
    reason = "the time limit of 60 s leaves no time for it"
    return Variant(recipe, "int8", None, failure=reason, skipped=True)


def not_applicable(recipe: str) -> Variant:
    reason = "the model has no MatMul"
    return Variant(recipe, "int8", None, failure=reason, applicable=False)
