"""Whether the outputs are distributed as the live revision's: the population stability index.

PSI = sum over bins of (c - l) ln(c / l), with l and c the shares of live's and the candidate's
rows in a bin (Siddiqi, Credit Risk Scorecards, 2006). Numbers are binned by live's quantiles,
labels by live's most frequent ones. Where nothing drifts, its mean is about
(bins - 1)(1/n + 1/m) (Yurdakul and Naranjo, J. Risk Model Validation 14, 2020); no index is given
before that noise is a quarter of the limit. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

BINS = 10
_NOISE_SHARE = 0.25
_PRIOR = 0.5  # of a row in each bin: an empty one has no logarithm

Value = float | str


def rows_needed(max_psi: float) -> int:
    """Pairs from which on an index near `max_psi` is more than noise."""
    return math.ceil(2 * (BINS - 1) / (_NOISE_SHARE * max_psi))


def psi(live: Sequence[int], candidate: Sequence[int]) -> float:
    """The index of two histograms with the same bins; 0 for equal shares."""
    total = 0.0
    n, m = (sum(side) + _PRIOR * len(side) for side in (live, candidate))
    for ours, theirs in zip(candidate, live, strict=True):
        c, l = (ours + _PRIOR) / m, (theirs + _PRIOR) / n  # noqa: E741 - as in the formula
        total += (c - l) * math.log(c / l)
    return total


class Drift:
    """One statistic of the outputs: the first `needed` pairs choose the bins, then all count."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._early: list[tuple[Value, Value]] = []
        self._bins: _Bins | None = None
        self._live: list[int] = []
        self._candidate: list[int] = []

    def add(self, live: Value, candidate: Value) -> None:
        """Count one pair."""
        if self._bins is not None:
            self._count(self._bins, live, candidate)
            return
        self._early.append((live, candidate))
        if len(self._early) == self._needed:
            self._bins = _Bins([pair[0] for pair in self._early])
            self._live, self._candidate = [0] * self._bins.count, [0] * self._bins.count
            for pair in self._early:
                self._count(self._bins, *pair)
            self._early.clear()

    @property
    def index(self) -> float | None:
        """The index over all pairs; None before there are enough."""
        return None if self._bins is None else psi(self._live, self._candidate)

    def _count(self, bins: _Bins, live: Value, candidate: Value) -> None:
        self._live[bins.of(live)] += 1
        self._candidate[bins.of(candidate)] += 1


class _Bins:
    """At most BINS bins that hold about as many of the given values each, and one for others."""

    def __init__(self, values: Sequence[Value]) -> None:
        numbers = [value for value in values if not isinstance(value, str)]
        self._edges: list[float] = []
        self._labels: dict[str, int] = {}
        if numbers:
            quantiles = np.quantile(np.asarray(numbers), np.linspace(0, 1, BINS + 1)[1:-1])
            edges = sorted({float(edge) for edge in quantiles})
            # A value that many rows share is a bin of its own: below it, it, and above it.
            repeated = {low for low, high in pairwise(map(float, quantiles)) if low == high}
            self._edges = sorted({*edges, *(np.nextafter(edge, math.inf) for edge in repeated)})
        else:
            common = Counter(map(str, values)).most_common(BINS - 1)
            self._labels = {label: place for place, (label, _) in enumerate(common)}

    @property
    def count(self) -> int:
        return max(len(self._edges), len(self._labels)) + 1

    def of(self, value: Value) -> int:
        """The bin of a value; the last one for a label that is not among live's."""
        if isinstance(value, str):
            return self._labels.get(value, self.count - 1)
        return bisect_right(self._edges, value)
