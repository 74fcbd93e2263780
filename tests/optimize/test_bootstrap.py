"""Intervals by resampling, the bound for what was not seen, and orders by content."""

from __future__ import annotations

import math

import numpy as np
import pytest

from optimize.bootstrap import Estimate, bootstrap, canonical_order, unseen_share, weighted_mean


def test_the_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, 2000)
    found = bootstrap(weighted_mean(values), 2000, resamples=2000, level=0.95, seed=3)
    half = 1.96 * values.std() / math.sqrt(2000)
    assert found.value == pytest.approx(values.mean())
    assert found.level == 0.95
    assert found.low == pytest.approx(values.mean() - half, abs=half / 10)
    assert found.high == pytest.approx(values.mean() + half, abs=half / 10)


def test_a_seed_gives_the_same_interval_and_a_higher_level_a_wider_one() -> None:
    mean = weighted_mean(np.arange(50.0))
    first, again = (bootstrap(mean, 50, resamples=300, level=0.9, seed=1) for _ in range(2))
    assert first == again
    other = bootstrap(mean, 50, resamples=300, level=0.9, seed=2)
    assert (other.low, other.high) != (first.low, first.high)
    wider = bootstrap(mean, 50, resamples=300, level=0.99, seed=1)
    assert wider.low < first.low < first.high < wider.high


def test_every_resample_has_as_many_rows_as_there_are() -> None:
    seen: list[np.ndarray] = []

    def keep(weights: np.ndarray) -> float:
        seen.append(weights)
        return 0.0

    bootstrap(keep, 20, resamples=30, level=0.95, seed=0)
    assert len(seen) == 31
    assert {weights.sum() for weights in seen} == {20.0}
    assert len({weights.tobytes() for weights in seen}) > 25


def test_an_interval_is_widened_but_never_narrowed() -> None:
    estimate = Estimate(0.5, 0.45, 0.9, 0.95)
    assert estimate.widened(0.1) == Estimate(0.5, 0.4, 0.9, 0.95)
    assert estimate.widened(0.0) == estimate


@pytest.mark.parametrize("rows", [1, 10, 300])
def test_the_unseen_share_is_the_exact_bound(rows: int) -> None:
    share = unseen_share(rows, 0.95)
    assert (1 - share) ** rows == pytest.approx(0.05)


def test_the_unseen_share_follows_the_rule_of_three() -> None:
    assert unseen_share(1000, 0.95) == pytest.approx(3 / 1000, rel=0.01)
    assert unseen_share(300, 0.95) < 0.01 < unseen_share(290, 0.95)


def test_rows_are_ordered_by_content_alone() -> None:
    random = np.random.default_rng(0)
    labels, one, two = random.integers(0, 3, 40), random.random((40, 2)), random.random(40)
    order = canonical_order(labels, ([one], [two]))
    assert sorted(order) == list(range(40))
    shuffle = random.permutation(40)
    other = canonical_order(labels[shuffle], ([one[shuffle]], [two[shuffle]]))
    np.testing.assert_array_equal(one[order], one[shuffle][other])
    np.testing.assert_array_equal(order, canonical_order(labels, ([two], [one])))
