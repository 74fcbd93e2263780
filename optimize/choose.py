"""The gates and the choice: pure, with a reason in words for every variant.

With labels the gate is the drop in accuracy; without, it is centred cosine and, where
the output is a row of scores, agreement of the top class. Among those that pass, the
best by the preferred number wins; what noise cannot separate from it (within 5 %, or
with overlapping quartiles) is a tie, which the smaller file wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from bundle.errors import ErrorCode, MlctlError
from optimize.latency import BatchLatency
from optimize.variant import Measured, Variant

MEGABYTE = 1_000_000

# Quartiles tell the noise within one measurement; between two processes on the same
# machine a median moves by a few percent.
TIE = 0.05


class Prefer(StrEnum):
    """What to choose by, among the variants that pass."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Goals:
    """The limits of a variant. `min_agreement` and `min_centred_cosine` only without labels."""

    max_accuracy_drop: float = 0.01
    max_p95_ms: float | None = None
    max_size_mb: float | None = None
    min_agreement: float = 0.99
    min_centred_cosine: float = 0.98
    prefer: Prefer = Prefer.LATENCY

    def __post_init__(self) -> None:
        """INVALID_INPUT for a limit that is negative or no finite number."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{field.name} = {value!r} is out of range: give a finite number, 0 or more",
                )


@dataclass(frozen=True, slots=True)
class Judged:
    """A variant with its verdict; `reason` tells it to a person."""

    variant: Variant
    passed: bool
    chosen: bool
    reason: str


def choose(variants: Sequence[Variant], goals: Goals) -> tuple[Judged, ...]:
    """Judge every variant and choose at most one, in the order given."""
    faults = {variant.recipe: _fault(variant, goals) for variant in variants}
    passing = [variant for variant in variants if faults[variant.recipe] is None]
    best, why = _best(passing, goals.prefer) if passing else (None, "")
    return tuple(
        _judge(variant, faults[variant.recipe], best, why, goals.prefer) for variant in variants
    )


def _judge(
    variant: Variant, fault: str | None, best: Variant | None, why: str, prefer: Prefer
) -> Judged:
    if fault is not None or best is None:
        return Judged(variant, passed=False, chosen=False, reason=fault or "")
    if variant is best:
        return Judged(variant, passed=True, chosen=True, reason=f"chosen: {why}")
    reason = f"passes, but {best.recipe} wins by {prefer.value}"
    return Judged(variant, passed=True, chosen=False, reason=reason)


def _fault(variant: Variant, goals: Goals) -> str | None:
    """The first gate that the variant misses, with value and limit."""
    if variant.measured is None:
        return f"failed: {variant.failure}"
    return next(_faults(variant.measured, goals), None)


def _faults(measured: Measured, goals: Goals) -> Iterator[str]:
    parity = measured.parity
    if measured.accuracy_drop is not None:
        if measured.accuracy_drop > goals.max_accuracy_drop:
            yield _over("accuracy drop", measured.accuracy_drop, goals.max_accuracy_drop)
    else:
        if parity.centred_cosine < goals.min_centred_cosine:
            yield _under("centred cosine", parity.centred_cosine, goals.min_centred_cosine)
        if parity.agreement is not None and parity.agreement < goals.min_agreement:
            yield _under("agreement", parity.agreement, goals.min_agreement)
    if goals.max_p95_ms is not None and measured.p95_ms > goals.max_p95_ms:
        yield _over("p95 latency in ms", measured.p95_ms, goals.max_p95_ms)
    size = measured.size_bytes / MEGABYTE
    if goals.max_size_mb is not None and size > goals.max_size_mb:
        yield _over("size in MB", size, goals.max_size_mb)


def _over(what: str, value: float, limit: float) -> str:
    return f"{what} {value:.4g} is over the limit {limit:.4g}"


def _under(what: str, value: float, limit: float) -> str:
    return f"{what} {value:.4g} is under the limit {limit:.4g}"


def _best(passing: Sequence[Variant], prefer: Prefer) -> tuple[Variant, str]:
    """The winner and why; every variant of `passing` is measured."""
    if prefer is Prefer.SIZE:
        return min(passing, key=_size), "the smallest that passes"
    fastest = min(passing, key=lambda variant: _cost(variant, prefer)[1])
    _, median, third_quartile = _cost(fastest, prefer)
    ceiling = max(third_quartile, median * (1 + TIE))
    tied = [variant for variant in passing if _cost(variant, prefer)[0] <= ceiling]
    winner = min(tied, key=_size)
    goal = "lowest latency" if prefer is Prefer.LATENCY else "highest throughput"
    if len(tied) == 1:
        return winner, f"the {goal} that passes"
    others = ", ".join(variant.recipe for variant in tied if variant is not winner)
    return winner, f"noise cannot separate its {prefer.value} from {others}; the smaller file wins"


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
