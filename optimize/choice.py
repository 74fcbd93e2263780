"""The choice among the variants: pure, with a reason in words for each.

Among those that meet the goals, the best by the preferred number wins. Variants that are
not slower than the fastest by more than 5 %, with 99 % confidence, tie with it. So do variants
that are at most 10 us slower for a single row and answer as many rows per second. Of a tie win, in
this order, variants whose requests can be batched, files smaller by more than 10 MB, and the
variant that costs the least accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from optimize.goals import Goals, Prefer, accuracy_faults, over
from optimize.metrics.latency import TIE, BatchLatency, Ratio, time_ratio
from optimize.variant import Measured, Variant

BASELINES = ("fp32", "gen-fp32")
# A request takes twice as long in the server beside the model.
TIE_MS = 0.01
MEGABYTE = 1_000_000
# 4 % of the memory of a server with one worker and a model of a few kB (255 MB).
SAME_SIZE = 10 * MEGABYTE


class VariantVerdict(StrEnum):
    """The outcome for a variant."""

    CHOSEN = "chosen"
    PASSES = "passes"
    REJECTED = "rejected"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Judged:
    """A variant with its verdict and the reason for it.

    `accurate` says whether it meets the goals that do not depend on a clock.
    """

    variant: Variant
    accurate: bool
    passed: bool
    chosen: bool
    reason: str

    @property
    def verdict(self) -> VariantVerdict:
        if self.variant.measured is None:
            return _unmeasured(self.variant)
        if self.chosen:
            return VariantVerdict.CHOSEN
        return VariantVerdict.PASSES if self.passed else VariantVerdict.REJECTED


@dataclass(frozen=True, slots=True)
class _Choice:
    """The winner, why it won, and all variants that tie with it by the preferred number.

    Variants of up to `max_size` bytes count as equally large.
    """

    winner: Variant
    why: str
    tied: tuple[Variant, ...]
    max_size: int


def choose(variants: Sequence[Variant], goals: Goals) -> tuple[Judged, ...]:
    """Judge every variant, in order, and choose at most one."""
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
        remarks = (_not_faster(variant, passing, goals.prefer), _unbatched(variant, passing))
        reason = "; ".join([f"chosen: {choice.why}", *filter(None, remarks)])
        return Judged(variant, accurate, passed=True, chosen=True, reason=reason)
    if variant not in choice.tied:
        won_by = f"wins by {goals.prefer.value}"
    elif _size(variant) > choice.max_size:
        won_by = f"wins by {Prefer.SIZE.value}"
    elif _is_batched(choice.winner) and not _is_batched(variant):
        won_by = "wins: it answers requests in batches"
    else:
        won_by = "wins: it costs less accuracy"
        if _accuracy_cost(variant) == _accuracy_cost(choice.winner):
            won_by = "is as accurate and not larger"
    reason = f"passes, but {choice.winner.recipe} {won_by}"
    return Judged(variant, accurate, passed=True, chosen=False, reason=reason)


def _not_faster(winner: Variant, passing: Sequence[Variant], prefer: Prefer) -> str:
    """Return how the winner's time compares with the baseline's, unless it is clearly faster."""
    base = next((variant for variant in passing if variant.recipe in BASELINES), None)
    if base is None or base is winner or not (_latencies(base) and _latencies(winner)):
        return ""
    ratio = time_ratio(_preferred(winner, prefer), _preferred(base, prefer))
    if ratio.high < 1 / (1 + TIE):
        return ""
    return f"it is not faster than {base.recipe} ({_times(ratio)} its time)"


def _unbatched(winner: Variant, passing: Sequence[Variant]) -> str:
    """Return what throughput a winner gives up that answers one row at a time, if any."""
    if _is_batched(winner) or not (winner.measured and winner.measured.latency):
        return ""
    others = [each.measured for each in passing if each.measured and each.measured.latency]
    quickest = max(others, key=lambda measured: measured.rows_per_second)
    own = winner.measured.rows_per_second
    if not quickest.row_independent or quickest.rows_per_second <= own * (1 + TIE):
        return ""
    return (
        f"but it answers requests one row at a time, {own:,.0f} rows/s, where another variant "
        f"reaches {quickest.rows_per_second:,.0f} in batches: --prefer throughput chooses by that"
    )


def _is_batched(variant: Variant) -> bool:
    return variant.measured is not None and variant.measured.row_independent


def _fault(variant: Variant, goals: Goals) -> str | None:
    """Return the first gate that the variant misses, with value and limit."""
    if variant.measured is None:
        return f"{_unmeasured(variant)}: {variant.failure}"
    return next(_faults(variant.measured, goals), None)


def _unmeasured(variant: Variant) -> VariantVerdict:
    return VariantVerdict.FAILED if variant.applicable else VariantVerdict.NOT_APPLICABLE


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
    score = measured.score
    for fault in accuracy_faults(measured.parity, score, goals):
        if score is not None and fault.startswith(goals.drop_name):
            yield f"{fault} (upper bound; {score.drop.value:.4g} on these {measured.rows} rows)"
        else:
            yield fault


def _best(passing: Sequence[Variant], prefer: Prefer) -> _Choice:
    """Return the winner and why; every variant of `passing` is measured."""
    smallest = min(passing, key=lambda variant: (_size(variant), *_accuracy_cost(variant)))
    if prefer is Prefer.SIZE:
        return _Choice(smallest, "the smallest that passes", tuple(passing), _size(smallest))
    if not all(_latencies(variant) for variant in passing):
        why = (
            "the smallest that passes; latency was not measured, because the target is "
            "not on this machine"
        )
        return _Choice(smallest, why, tuple(passing), _size(smallest))
    timed = [(variant, _preferred(variant, prefer)) for variant in passing]
    fastest = min((latency for _, latency in timed), key=_row_ms)
    quickest = next(variant for variant, latency in timed if latency is fastest)
    tied = tuple(
        variant
        for variant, latency in timed
        if time_ratio(latency, fastest).low <= 1 + TIE
        or (prefer is Prefer.LATENCY and _as_good(variant, quickest))
    )
    batched = [variant for variant in tied if _is_batched(variant)] or tied
    max_size = min(map(_size, batched)) + SAME_SIZE
    small = [variant for variant in batched if _size(variant) <= max_size]
    winner = min(small, key=lambda variant: (*_accuracy_cost(variant), _size(variant)))
    goal = "lowest latency" if prefer is Prefer.LATENCY else "highest throughput"
    if len(tied) == 1:
        return _Choice(winner, f"the {goal} that passes", tied, max_size)
    others = ", ".join(variant.recipe for variant in tied if variant is not winner)
    settled = "it is the smallest" if len(small) == 1 else "it costs the least accuracy"
    if len(batched) < len(tied):
        settled += " of those whose requests can be batched"
    limits = (
        f"{TIE:.0%}, 10 us or the noise" if prefer is Prefer.LATENCY else f"{TIE:.0%} or the noise"
    )
    why = f"a tie: its {prefer.value} differs from {others} by less than {limits}; {settled}"
    return _Choice(winner, why, tied, max_size)


def _accuracy_cost(variant: Variant) -> tuple[float, float]:
    """Return the upper bound of the drop, 0 without labels, and the relative L2 to the source."""
    measured = variant.measured
    assert measured is not None
    drop = 0.0 if measured.score is None else measured.score.drop.high
    return max(0.0, drop), measured.parity.relative_l2


def _as_good(variant: Variant, quickest: Variant) -> bool:
    """Return whether a row takes at most TIE_MS longer, and throughput is as high."""
    own, other = variant.measured, quickest.measured
    assert own is not None
    assert other is not None
    slower = own.latency[0].median_ms - other.latency[0].median_ms
    rows = time_ratio(own.best_batch, other.best_batch)
    return not own.generates and slower <= TIE_MS and rows.low <= 1 + TIE


def _latencies(variant: Variant) -> tuple[BatchLatency, ...]:
    return () if variant.measured is None else variant.measured.latency


def _preferred(variant: Variant, prefer: Prefer) -> BatchLatency:
    """Return the latency to compare: the best batch for throughput, else a single row.

    Of a language model it is always that of an answer.
    """
    latencies = _latencies(variant)
    generates = variant.measured is not None and variant.measured.generates
    if generates or prefer is not Prefer.THROUGHPUT:
        return latencies[0]
    return min(latencies, key=_row_ms)


def _row_ms(latency: BatchLatency) -> float:
    return latency.median_ms / latency.batch


def _times(ratio: Ratio) -> str:
    low, high = f"{ratio.low:.2f}", f"{ratio.high:.2f}"
    return f"{low}x" if low == high else f"{low} to {high}x"


def _size(variant: Variant) -> int:
    assert variant.measured is not None
    return variant.measured.size_bytes
