"""Confidence intervals for the difference of a metric between two models on the same rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mlctl.optimize.data import row_bytes

Statistic = Callable[[np.ndarray], float]
"""A statistic of fixed rows as a function of the rows' weights [rows]."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval from `low` to `high` at `level` (0.95: 95 %)."""

    value: float
    low: float
    high: float
    level: float


def weighted_mean(values: np.ndarray) -> Statistic:
    """Return the mean of `values` [rows] as a statistic."""
    numbers = values.astype(np.float64)
    return lambda weights: float(numbers @ weights / weights.sum())


def bootstrap(
    statistic: Statistic,
    rows: int,
    *,
    resamples: int,
    level: float,
    seed: int,
    unseen: float | None = 0.0,
) -> Estimate:
    """Return the percentile interval of `statistic` over `resamples` resamples of `rows` rows.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. A statistic
    that is the difference of two models' metrics sees both under the same weights, so
    the interval is that of paired rows.

    No resample contains an event that no row shows, so an interval over few events is too
    short: with k of them its end is a quantile of Poisson(k), while the exact one (Clopper
    and Pearson, Biometrika 1934) is near one of Poisson(k + 1). Each resample may therefore also
    draw a row that moves the statistic by `unseen` / `rows`, to the worse side; 3
    of them if k is 0, as in the rule of three. None takes 1 if all resamples are
    equal, and 0 otherwise.
    """
    generator = np.random.default_rng(seed)
    values = np.empty(resamples)
    for number in range(resamples):
        drawn = generator.integers(0, rows, rows)
        values[number] = statistic(np.bincount(drawn, minlength=rows).astype(np.float64))
    if unseen is None:
        unseen = float(np.ptp(values) == 0)
    more = generator.permutation(_times_drawn(resamples)) * unseen / rows
    tail = (1 - level) / 2
    low, high = np.quantile(values - more, tail), np.quantile(values + more, 1 - tail)
    return Estimate(statistic(np.ones(rows)), round(float(low), 12), round(float(high), 12), level)


def _times_drawn(resamples: int) -> np.ndarray:
    """Return how often each resample draws one row: Poisson(1), by quantiles and not at random."""
    law = np.cumsum([math.exp(-1) / math.factorial(times) for times in range(20)])
    return np.searchsorted(law, (np.arange(resamples) + 0.5) / resamples)


def canonical_order(labels: np.ndarray, sides: Iterable[Iterable[np.ndarray]]) -> np.ndarray:
    """Return an order of the rows that depends on their content alone.

    A seed then draws the same rows in whichever order they arrive. The content of the
    `sides` is added up, so exchanging two models changes nothing either.
    """
    keys = np.zeros(len(labels), np.uint64)
    for side in sides:
        arrays = [np.ascontiguousarray(array) for array in (labels, *side)]
        content = (b"".join(map(row_bytes, rows)) for rows in zip(*arrays, strict=True))
        digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in content)
        keys += np.frombuffer(digests, np.uint64)
    return np.argsort(keys, kind="stable")
