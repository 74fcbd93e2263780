"""The choice among the variants: pure, with a reason in words for each.

Of the variants that meet the goals the simplest wins: the baseline, else the one that costs the
least accuracy. One that costs more takes its place only if it is faster by the smallest gain that
counts (`Goals.min_gain`) with 99 % confidence, so that noise never chooses a lossy variant, and if
it does not lose as much throughput. For a single row a gain of less than 10 us counts only if it is
one in batches, too. With `Prefer.SIZE` the smallest file wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mlctl.optimize.metrics.latency import TIE, BatchLatency, Ratio, time_ratio
from mlctl.optimize.variants.goals import Goals, Prefer, accuracy_faults, over
from mlctl.optimize.variants.variant import Measured, Variant

BASELINES = ("fp32", "gen-fp32")
# A request takes twice as long in the server beside the model.
SMALL_GAIN_MS = 0.01
MEGABYTE = 1_000_000


class VariantVerdict(StrEnum):
    """The outcome for a variant."""

    CHOSEN = "chosen"
    PASSES = "passes"
    REJECTED = "rejected"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"


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
    """The winner and why it won; `by_size` says that speed had no part in it."""

    winner: Variant
    why: str
    by_size: bool


def choose(variants: Sequence[Variant], goals: Goals) -> tuple[Judged, ...]:
    """Judge every variant, in order, and choose at most one."""
    faults = {variant.recipe: _fault(variant, goals) for variant in variants}
    passing = [variant for variant in variants if faults[variant.recipe] is None]
    choice = _best(passing, goals) if passing else None
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
    accurate = measured is not None and next(_inaccuracies(variant, goals), None) is None
    if fault is not None or choice is None:
        return Judged(variant, accurate, passed=False, chosen=False, reason=fault or "")
    if variant is choice.winner:
        remark = _not_faster(variant, passing) if goals.prefer is Prefer.SIZE else ""
        reason = "; ".join(filter(None, (f"chosen: {choice.why}", remark)))
        return Judged(variant, accurate, passed=True, chosen=True, reason=reason)
    lost = "wins by size" if choice.by_size else _why_lost(variant, choice.winner, goals)
    reason = f"passes, but {choice.winner.recipe} {lost}"
    return Judged(variant, accurate, passed=True, chosen=False, reason=reason)


def _why_lost(variant: Variant, winner: Variant, goals: Goals) -> str:
    ratio = time_ratio(_preferred(variant, goals.prefer), _preferred(winner, goals.prefer))
    if ratio.low > 1 or _rank(variant) < _rank(winner):
        return f"wins by {goals.prefer.value}"
    if _loses_throughput(variant, winner, goals):
        own, other = (_measured(each).rows_per_second for each in (variant, winner))
        return f"answers {other:,.0f} rows/s at its best batch size, this one {own:,.0f}"
    if _is_fast_enough(ratio, goals):
        return f"is less than {1000 * SMALL_GAIN_MS:.0f} us slower, and costs less accuracy"
    return (
        f"costs less accuracy; at {_times(ratio)} of its time this one is not "
        f"{goals.min_gain:.0%} faster beyond the noise"
    )


def _not_faster(winner: Variant, passing: Sequence[Variant]) -> str:
    """Return how the winner's time compares with the baseline's, unless it is clearly faster."""
    base = next((variant for variant in passing if variant.recipe in BASELINES), None)
    if base is None or base is winner or not (_latencies(base) and _latencies(winner)):
        return ""
    ratio = time_ratio(_preferred(winner, Prefer.LATENCY), _preferred(base, Prefer.LATENCY))
    if ratio.high < 1 / (1 + TIE):
        return ""
    return f"it is not faster than {base.recipe} ({_times(ratio)} its time)"


def _fault(variant: Variant, goals: Goals) -> str | None:
    """Return the first gate that the variant misses, with value and limit."""
    if variant.measured is None:
        return f"{_unmeasured(variant)}: {variant.failure}"
    return next(_faults(variant, goals), None)


def _unmeasured(variant: Variant) -> VariantVerdict:
    if variant.skipped:
        return VariantVerdict.SKIPPED
    return VariantVerdict.FAILED if variant.applicable else VariantVerdict.NOT_APPLICABLE


def _faults(variant: Variant, goals: Goals) -> Iterator[str]:
    measured = _measured(variant)
    yield from _inaccuracies(variant, goals)
    if goals.max_p95_ms is not None:
        if not measured.latency:
            yield "its latency was not measured, because its target is not on this machine"
        elif measured.p95_ms > goals.max_p95_ms:
            yield over("p95 latency in ms", measured.p95_ms, goals.max_p95_ms)
    size = measured.size_bytes / MEGABYTE
    if goals.max_size_mb is not None and size > goals.max_size_mb:
        yield over("size in MB", size, goals.max_size_mb)


def _inaccuracies(variant: Variant, goals: Goals) -> Iterator[str]:
    """Yield the gates on accuracy that are missed, and first that the rows cannot judge it.

    On rows with one answer a lossy variant is right that is wrong elsewhere. The baseline is
    proved on generated rows, too; texts are judged token by token.
    """
    measured = _measured(variant)
    score, parity = measured.score, measured.parity
    is_lossy = variant.recipe not in BASELINES and not measured.generates
    if is_lossy and len(parity.constant) == len(parity.outputs):
        yield (
            f"the source model's answers do not vary over the judging rows ({measured.rows:,}), "
            "which proves nothing about a lossy variant: give rows of real data with --data"
        )
    for fault in accuracy_faults(parity, score, goals):
        if score is not None and fault.startswith(goals.drop_name):
            yield f"{fault} (upper bound; {score.drop.value:.4g} on these {measured.rows} rows)"
        else:
            yield fault


def _best(passing: Sequence[Variant], goals: Goals) -> _Choice:
    """Return the winner and why; every variant of `passing` is measured."""
    smallest = min(passing, key=lambda variant: (_measured(variant).size_bytes, _rank(variant)))
    if goals.prefer is Prefer.SIZE:
        return _Choice(smallest, "the smallest that passes", by_size=True)
    if not all(_latencies(variant) for variant in passing):
        why = (
            "the smallest that passes; latency was not measured, because the target is "
            "not on this machine"
        )
        return _Choice(smallest, why, by_size=True)
    winner, *others = sorted(passing, key=_rank)
    for variant in others:
        if _replaces(variant, winner, goals):
            winner = variant
    best = min(passing, key=lambda variant: _row_ms(_preferred(variant, goals.prefer)))
    if winner is best:
        goal = "lowest latency" if goals.prefer is Prefer.LATENCY else "highest throughput"
        return _Choice(winner, f"the {goal} that passes", by_size=False)
    why = f"no variant that costs more accuracy is {goals.min_gain:.0%} faster beyond the noise"
    return _Choice(winner, why, by_size=False)


def _rank(variant: Variant) -> tuple[bool, bool, float, float, int]:
    """Return the order in which variants are preferred while none is faster than the others.

    The baseline, variants whose requests can be batched, then by the upper bound of the drop, 0
    without labels, the relative L2 to the source, and size. No clock has a part in it.
    """
    measured = _measured(variant)
    drop = 0.0 if measured.score is None else measured.score.drop.high
    return (
        variant.recipe not in BASELINES,
        not measured.row_independent,
        max(0.0, drop),
        measured.parity.relative_l2,
        measured.size_bytes,
    )


def _replaces(variant: Variant, winner: Variant, goals: Goals) -> bool:
    """Return whether `variant`, which costs more accuracy, is faster by a gain that counts."""
    own, other = _preferred(variant, goals.prefer), _preferred(winner, goals.prefer)
    if not _is_fast_enough(time_ratio(own, other), goals):
        return False
    if goals.prefer is Prefer.THROUGHPUT or _measured(variant).generates:
        return True
    if other.median_ms - own.median_ms <= SMALL_GAIN_MS:
        return _is_fast_enough(_batch_ratio(variant, winner), goals)
    return not _loses_throughput(variant, winner, goals)


def _is_fast_enough(ratio: Ratio, goals: Goals) -> bool:
    return ratio.high < 1 / (1 + goals.min_gain)


def _loses_throughput(variant: Variant, winner: Variant, goals: Goals) -> bool:
    if goals.prefer is Prefer.THROUGHPUT or _measured(variant).generates:
        return False
    return _batch_ratio(variant, winner).low > 1 + goals.min_gain


def _batch_ratio(variant: Variant, other: Variant) -> Ratio:
    """Return how long a row takes at the best batch size of each."""
    return time_ratio(_measured(variant).best_batch, _measured(other).best_batch)


def _measured(variant: Variant) -> Measured:
    assert variant.measured is not None
    return variant.measured


def _latencies(variant: Variant) -> tuple[BatchLatency, ...]:
    return () if variant.measured is None else variant.measured.latency


def _preferred(variant: Variant, prefer: Prefer) -> BatchLatency:
    """Return the latency to compare: the best batch for throughput, else a single row.

    Of a language model it is always that of an answer.
    """
    measured = _measured(variant)
    if measured.generates or prefer is not Prefer.THROUGHPUT:
        return measured.latency[0]
    return measured.best_batch


def _row_ms(latency: BatchLatency) -> float:
    return latency.median_ms / latency.batch


def _times(ratio: Ratio) -> str:
    low, high = f"{ratio.low:.2f}", f"{ratio.high:.2f}"
    return f"{low}x" if low == high else f"{low} to {high}x"
