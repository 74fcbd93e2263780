"""The population stability index: exact on small tables, calm on equal distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlctl.rollout.domain.statistics.drift import BINS, Drift, Value, psi, rows_needed


def index(live: list[Value], candidate: list[Value], max_psi: float = 0.2) -> float | None:
    drift = Drift(rows_needed(max_psi))
    for left, right in zip(live, candidate, strict=True):
        drift.add(left, right)
    return drift.index


def test_psi__two_bins__follows_the_formula() -> None:
    n, m = 101.0, 101.0
    shares = [(50.5 / n, 20.5 / m), (50.5 / n, 80.5 / m)]
    wanted = sum((c - l) * math.log(c / l) for l, c in shares)  # noqa: E741 - as in the formula
    assert psi([50, 50], [20, 80]) == pytest.approx(wanted)
    assert psi([50, 50], [50, 50]) == 0.0


def test_psi__empty_bin__is_finite_and_large() -> None:
    assert 1.0 < psi([100, 0], [0, 100]) < math.inf


def test_drift_index__too_few_values__is_none() -> None:
    needed = rows_needed(0.2)
    assert needed == 360
    values: list[Value] = list(np.random.default_rng(1).normal(size=needed))
    assert index(values[:-1], values[:-1]) is None
    assert index(values, values) == 0.0


def test_drift_index__equal_distributions__stays_below_the_limit() -> None:
    """Two independent samples of one distribution, 200 runs: the mean is that of the theory."""
    needed, generator = rows_needed(0.2), np.random.default_rng(7)
    found = []
    for _ in range(200):
        live, ours = generator.normal(size=(2, needed))
        told = index(list(live), list(ours))
        assert told is not None
        found.append(told)
    assert float(np.mean(found)) == pytest.approx(2 * (BINS - 1) / needed, rel=0.2)
    assert float(np.quantile(found, 0.95)) < 0.2


def test_drift_index__shift_by_one_deviation__is_drift() -> None:
    live = np.random.default_rng(3).normal(size=1000)
    told = index(list(live), list(live + 1.0))
    assert told is not None
    assert told > 0.5


def test_drift_index__many_labels__bins_the_frequent_ones() -> None:
    live: list[Value] = [str(n % 50) for n in range(2000)]
    assert index(live, live) == 0.0
    told = index(live, ["new"] * 2000)
    assert told is not None
    assert told > 0.5


def test_drift_index__value_that_most_rows_share__is_a_bin() -> None:
    places = np.random.default_rng(1).permutation(1000)
    shuffled: list[Value] = [float(place >= 900) for place in places]
    below: list[Value] = [-1.0 if value == 0.0 else value for value in shuffled]
    told = index(shuffled, below)
    assert told is not None
    assert told > 1.0
    assert index(shuffled, shuffled) == 0.0


def test_drift_index__non_finite_values__are_drift() -> None:
    live: list[Value] = list(np.random.default_rng(3).normal(size=1000))
    told = index(live, ["not finite"] * 1000)
    assert told is not None
    assert told > 1.0
