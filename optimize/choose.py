"""The choice: pure, with a reason in words for every variant.

Among those that meet the goals, the best by the preferred number wins; what noise
cannot separate from it (within 5 %, or with overlapping quartiles) is a tie, which the
smaller file wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optimize.goals import Goals, Prefer, accuracy_faults, over
from optimize.latency import BatchLatency
from optimize.variant import Measured, Variant

MEGABYTE = 1_000_000

# Quartiles tell the noise within one measurement; between two processes on the same
# machine a median moves by a few percent.
TIE = 0.05
_TIE_WORDS = "a tie"


@dataclass(frozen=True, slots=True)
class Judged:
    """A variant with its verdict; `reason` tells it to a person.

    `accurate` is the part of the verdict that no clock has a say in.
    """

    variant: Variant
    accurate: bool
    passed: bool
    chosen: bool
    reason: str


def choose(variants: Sequence[Variant], goals: Goals) -> tuple[Judged, ...]:
    """Judge every variant and choose at most one, in the order given."""
    faults = {variant.recipe: _fault(variant, goals) for variant in variants}
    passing = [variant for variant in variants if faults[variant.recipe] is None]
    best, why = _best(passing, goals.prefer) if passing else (None, "")
    timed = all(variant.measured and variant.measured.latency for variant in passing)
    by_size = not timed or why.startswith(_TIE_WORDS)
    won_by = Prefer.SIZE if by_size else goals.prefer
    return tuple(
        _judge(variant, faults[variant.recipe], best, why, goals, won_by) for variant in variants
    )


def _judge(
    variant: Variant,
    fault: str | None,
    best: Variant | None,
    why: str,
    goals: Goals,
    won_by: Prefer,
) -> Judged:
    measured = variant.measured
    accurate = measured is not None and next(_inaccuracies(measured, goals), None) is None
    if fault is not None or best is None:
        return Judged(variant, accurate, passed=False, chosen=False, reason=fault or "")
    if variant is best:
        return Judged(variant, accurate, passed=True, chosen=True, reason=f"chosen: {why}")
    reason = f"passes, but {best.recipe} wins by {won_by.value}"
    return Judged(variant, accurate, passed=True, chosen=False, reason=reason)


def _fault(variant: Variant, goals: Goals) -> str | None:
    """The first gate that the variant misses, with value and limit."""
    if variant.measured is None:
        return f"failed: {variant.failure}"
    return next(_faults(variant.measured, goals), None)


def _faults(measured: Measured, goals: Goals) -> Iterator[str]:
    yield from _inaccuracies(measured, goals)
    if goals.max_p95_ms is not None:
        if not measured.latency:
            yield "its latency was not measured, because its target is not on this machine"
        elif measured.p95_ms > goals.max_p95_ms:
            yield over("p95 latency in ms", measured.p95_ms, goals.max_p95_ms)
    size = measured.size_bytes / MEGABYTE
    if goals.max_size_mb is not None and size > goals.max_size_mb:
        yield over("size in MB", size, goals.max_size_mb)


def _inaccuracies(measured: Measured, goals: Goals) -> Iterator[str]:
    """The gate looks at the bound of the drop and not at the drop: few rows prove little."""
    drop = None if measured.score is None else measured.score.drop
    for fault in accuracy_faults(measured.parity, None if drop is None else drop.high, goals):
        if drop is not None and fault.startswith("accuracy drop"):
            yield f"{fault} (upper bound; {drop.value:.4g} on these {measured.rows} rows)"
        else:
            yield fault


def _best(passing: Sequence[Variant], prefer: Prefer) -> tuple[Variant, str]:
    """The winner and why; every variant of `passing` is measured."""
    if prefer is Prefer.SIZE:
        return min(passing, key=_size), "the smallest that passes"
    if not all(variant.measured and variant.measured.latency for variant in passing):
        return min(passing, key=_size), (
            "the smallest that passes; latency was not measured, because the target is "
            "not on this machine"
        )
    fastest = min(passing, key=lambda variant: _cost(variant, prefer)[1])
    _, median, third_quartile = _cost(fastest, prefer)
    ceiling = max(third_quartile, median * (1 + TIE))
    tied = [variant for variant in passing if _cost(variant, prefer)[0] <= ceiling]
    winner = min(tied, key=_size)
    goal = "lowest latency" if prefer is Prefer.LATENCY else "highest throughput"
    if len(tied) == 1:
        return winner, f"the {goal} that passes"
    others = ", ".join(variant.recipe for variant in tied if variant is not winner)
    return winner, (
        f"{_TIE_WORDS}: noise cannot separate its {prefer.value} from {others}; "
        "the smaller file wins"
    )


def _cost(variant: Variant, prefer: Prefer) -> tuple[float, float, float]:
    """First quartile, median and third quartile of the milliseconds for one row."""
    assert variant.measured is not None
    batches = variant.measured.latency
    batch = batches[0] if prefer is Prefer.LATENCY else min(batches, key=_row_ms)
    return batch.q1_ms / batch.batch, _row_ms(batch), batch.q3_ms / batch.batch


def _row_ms(batch: BatchLatency) -> float:
    return batch.median_ms / batch.batch


def _size(variant: Variant) -> int:
    assert variant.measured is not None
    return variant.measured.size_bytes
