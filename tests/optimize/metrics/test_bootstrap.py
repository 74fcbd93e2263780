"""Intervals by resampling, the bound for what was not seen, and orders by content."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlctl.optimize.metrics.bootstrap import bootstrap, canonical_order, weighted_mean


def test_bootstrap__a_mean__has_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, 2000)
    found = bootstrap(weighted_mean(values), 2000, resamples=2000, level=0.95, seed=3)
    half = 1.96 * values.std() / math.sqrt(2000)
    assert found.value == pytest.approx(values.mean())
    assert found.level == 0.95
    assert found.low == pytest.approx(values.mean() - half, abs=half / 10)
    assert found.high == pytest.approx(values.mean() + half, abs=half / 10)


def test_bootstrap__seed_and_level__decide_the_interval() -> None:
    mean = weighted_mean(np.arange(50.0))
    first, again = (bootstrap(mean, 50, resamples=300, level=0.9, seed=1) for _ in range(2))
    assert first == again
    other = bootstrap(mean, 50, resamples=300, level=0.9, seed=2)
    assert (other.low, other.high) != (first.low, first.high)
    wider = bootstrap(mean, 50, resamples=300, level=0.99, seed=1)
    assert wider.low < first.low < first.high < wider.high


def test_bootstrap__each_resample__has_all_rows() -> None:
    seen: list[np.ndarray] = []

    def keep(weights: np.ndarray) -> float:
        seen.append(weights)
        return 0.0

    bootstrap(keep, 20, resamples=30, level=0.95, seed=0)
    assert len(seen) == 31
    assert {weights.sum() for weights in seen} == {20.0}
    assert len({weights.tobytes() for weights in seen}) > 25


def exact_bound(seen: int, rows: int, level: float) -> float:
    """The largest share of which `seen` or fewer of `rows` are drawn as often as 1 - level."""
    low, high = 0.0, 1.0
    for _ in range(50):
        share = (low + high) / 2
        fewer = sum(
            math.comb(rows, number) * share**number * (1 - share) ** (rows - number)
            for number in range(seen + 1)
        )
        low, high = (share, high) if fewer > 1 - level else (low, share)
    return low


@pytest.mark.parametrize("rows", [30, 300])
@pytest.mark.parametrize("seen", [0, 1, 2, 3, 5])
def test_bootstrap__a_share_of_few_rows__is_near_the_exact_bound(rows: int, seen: int) -> None:
    shown = (np.arange(rows) < seen).astype(float)
    draw = weighted_mean(shown)
    drawn = bootstrap(draw, rows, resamples=1000, level=0.95, seed=3, unseen=1.0)
    assert drawn.value == seen / rows
    assert exact_bound(seen, rows, 0.95) <= drawn.high <= exact_bound(seen, rows, 0.99)


def test_bootstrap__an_unseen_row__moves_both_ends_by_its_weight() -> None:
    none = weighted_mean(np.zeros(300))
    full = bootstrap(none, 300, resamples=1000, level=0.95, seed=3, unseen=1.0)
    assert (full.low, full.value, full.high) == (-0.01, 0.0, 0.01)
    half = bootstrap(none, 300, resamples=1000, level=0.95, seed=3, unseen=0.5)
    assert (half.low, half.value, half.high) == (-0.005, 0.0, 0.005)


def test_bootstrap__equal_resamples__weigh_the_unseen_row() -> None:
    alike, mixed = weighted_mean(np.ones(300)), weighted_mean(np.arange(300.0))
    found = bootstrap(alike, 300, resamples=1000, level=0.95, seed=3, unseen=None)
    assert (found.low, found.high) == (0.99, 1.01)
    assert bootstrap(mixed, 300, resamples=99, level=0.9, seed=3, unseen=None) == bootstrap(
        mixed, 300, resamples=99, level=0.9, seed=3
    )


def test_canonical_order__shuffled_rows__depends_on_content_alone() -> None:
    random = np.random.default_rng(0)
    labels, one, two = random.integers(0, 3, 40), random.random((40, 2)), random.random(40)
    order = canonical_order(labels, ([one], [two]))
    assert sorted(order) == list(range(40))
    shuffle = random.permutation(40)
    other = canonical_order(labels[shuffle], ([one[shuffle]], [two[shuffle]]))
    np.testing.assert_array_equal(one[order], one[shuffle][other])
    np.testing.assert_array_equal(order, canonical_order(labels, ([two], [one])))
