"""Confidence intervals for the difference of a metric between two models on the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

Statistic = Callable[[np.ndarray], float]
"""A number of fixed rows as a function of the rows' weights [rows]."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval from `low` to `high` at `level` (0.95: 95 %)."""

    value: float
    low: float
    high: float
    level: float

    def widened(self, margin: float) -> Estimate:
        """The interval reaching at least `margin` to each side of the value."""
        low, high = self.value - margin, self.value + margin
        return Estimate(self.value, min(self.low, low), max(self.high, high), self.level)


def weighted_mean(values: np.ndarray) -> Statistic:
    """The mean of one value for each row, `values` [rows]."""
    held = values.astype(np.float64)
    return lambda weights: float(held @ weights / weights.sum())


def bootstrap(
    statistic: Statistic, rows: int, *, resamples: int, level: float, seed: int
) -> Estimate:
    """The percentile interval of `statistic` over `resamples` resamples of `rows` rows.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. A statistic
    that is the difference of two models' metrics sees both under the same weights, so
    the interval is that of paired rows. Percentile and not BCa: a paired difference is
    nearly unbiased and symmetric, and where few rows differ BCa has no more to go on.
    """
    generator = np.random.default_rng(seed)
    values = np.empty(resamples)
    for number in range(resamples):
        drawn = generator.integers(0, rows, rows)
        values[number] = statistic(np.bincount(drawn, minlength=rows).astype(np.float64))
    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Estimate(statistic(np.ones(rows)), float(low), float(high), level)


def unseen_share(rows: int, level: float) -> float:
    """The largest share of rows that an event may have which none of `rows` rows shows.

    The exact one-sided binomial bound 1 - (1 - level)^(1 / rows), near 3 / rows at 95 %:
    Hanley and Lippman-Hand, "If nothing goes wrong, is everything all right?" (JAMA 1983).
    """
    return float(-np.expm1(np.log1p(-level) / rows))


def canonical_order(labels: np.ndarray, sides: Iterable[Iterable[np.ndarray]]) -> np.ndarray:
    """An order of the rows that depends on their content alone.

    A seed then draws the same rows whatever order they came in. The content of the
    `sides` is added up, so that exchanging two models changes nothing either.
    """
    keys = np.zeros(len(labels), np.uint64)
    for side in sides:
        arrays = [np.ascontiguousarray(array) for array in (labels, *side)]
        content = (b"".join(row.tobytes() for row in rows) for rows in zip(*arrays, strict=True))
        digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in content)
        keys += np.frombuffer(digests, np.uint64)
    return np.argsort(keys, kind="stable")
