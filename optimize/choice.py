"""The choice: pure, with a reason in words for every variant.

Among those that meet the goals, the best by the preferred number wins; what noise
cannot separate from it (within 5 %, or with overlapping quartiles) is a tie. It goes to the
smallest file, first among those whose requests can be batched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optimize.goals import Goals, Prefer, accuracy_faults, over
from optimize.metrics.latency import BatchLatency
from optimize.variant import Measured, Variant

MEGABYTE = 1_000_000

# Quartiles show the noise within one measurement; between two processes on the same
# machine a median moves by a few percent.
TIE = 0.05


@dataclass(frozen=True, slots=True)
class Judged:
    """A variant with its verdict; `reason` says why, for a person.

    `accurate` is the part of the verdict that no clock has a say in.
    """

    variant: Variant
    accurate: bool
    passed: bool
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """The winner, why it won, and all that are as good as it by the preferred number."""

    winner: Variant
    why: str
    tied: tuple[Variant, ...]


def choose(variants: Sequence[Variant], goals: Goals) -> tuple[Judged, ...]:
    """Judge every variant and choose at most one, in the order given."""
    faults = {variant.recipe: _fault(variant, goals) for variant in variants}
    passing = [variant for variant in variants if faults[variant.recipe] is None]
    choice = _best(passing, goals.prefer) if passing else None
    return tuple(
        _judge(variant, faults[variant.recipe], choice, passing, goals) for variant in variants
    )


def _judge(
    variant: Variant,
    fault: str | None,
    choice: _Choice | None,
    passing: Sequence[Variant],
    goals: Goals,
) -> Judged:
    measured = variant.measured
    accurate = measured is not None and next(_inaccuracies(measured, goals), None) is None
    if fault is not None or choice is None:
        return Judged(variant, accurate, passed=False, chosen=False, reason=fault or "")
    if variant is choice.winner:
        reason = f"chosen: {choice.why}{_unbatched(variant, passing)}"
        return Judged(variant, accurate, passed=True, chosen=True, reason=reason)
    if variant not in choice.tied:
        won_by = f"wins by {goals.prefer.value}"
    elif _size(variant) >= _size(choice.winner):
        won_by = f"wins by {Prefer.SIZE.value}"
    else:
        won_by = "wins: it answers requests in batches"
    reason = f"passes, but {choice.winner.recipe} {won_by}"
    return Judged(variant, accurate, passed=True, chosen=False, reason=reason)


def _unbatched(winner: Variant, passing: Sequence[Variant]) -> str:
    """What a winner costs that answers one row at a time; empty if it costs nothing."""
    if _is_batched(winner) or not (winner.measured and winner.measured.latency):
        return ""
    others = [each.measured for each in passing if each.measured and each.measured.latency]
    quickest = max(others, key=lambda measured: measured.rows_per_second)
    own = winner.measured.rows_per_second
    if not quickest.row_independent or quickest.rows_per_second <= own * (1 + TIE):
        return ""
    return (
        f"; but it answers requests one row at a time, {own:,.0f} rows/s, where another variant "
        f"reaches {quickest.rows_per_second:,.0f} in batches: --prefer throughput chooses by that"
    )


def _is_batched(variant: Variant) -> bool:
    return variant.measured is not None and variant.measured.row_independent


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


def _best(passing: Sequence[Variant], prefer: Prefer) -> _Choice:
    """The winner and why; every variant of `passing` is measured."""
    smallest = min(passing, key=_size)
    if prefer is Prefer.SIZE:
        return _Choice(smallest, "the smallest that passes", tuple(passing))
    if not all(variant.measured and variant.measured.latency for variant in passing):
        why = (
            "the smallest that passes; latency was not measured, because the target is "
            "not on this machine"
        )
        return _Choice(smallest, why, tuple(passing))
    fastest = min(passing, key=lambda variant: _cost(variant, prefer)[1])
    _, median, third_quartile = _cost(fastest, prefer)
    ceiling = max(third_quartile, median * (1 + TIE))
    tied = tuple(variant for variant in passing if _cost(variant, prefer)[0] <= ceiling)
    winner = min(tied, key=lambda variant: (not _is_batched(variant), _size(variant)))
    goal = "lowest latency" if prefer is Prefer.LATENCY else "highest throughput"
    if len(tied) == 1:
        return _Choice(winner, f"the {goal} that passes", tied)
    others = ", ".join(variant.recipe for variant in tied if variant is not winner)
    settled = "the smaller file wins"
    if winner is not min(tied, key=_size):
        settled = "the smallest file wins whose requests can be batched"
    why = f"a tie: noise cannot separate its {prefer.value} from {others}; {settled}"
    return _Choice(winner, why, tied)


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
