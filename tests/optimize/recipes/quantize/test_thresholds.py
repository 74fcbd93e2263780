"""Ranges from histograms."""

from __future__ import annotations

import numpy as np
import pytest

from optimize.recipes.quantize.thresholds import (
    BINS,
    ValueRange,
    count_bins,
    entropy_range,
    percentile_range,
)


def seen(values: np.ndarray) -> ValueRange:
    return ValueRange(float(values.min()), float(values.max()))


def gaussian() -> np.ndarray:
    return np.random.default_rng(1).normal(size=200_000).astype(np.float32)


def test_count_bins__agrees_with_numpy() -> None:
    values = gaussian()
    largest = seen(values).largest
    expected, _ = np.histogram(values.astype(np.float64), BINS, range=(-largest, largest))
    found = count_bins(values, largest)
    assert found.sum() == values.size
    # Only values on a border may differ, by fp32 rounding.
    assert np.abs(found - expected).sum() < 1e-3 * values.size


def test_ranges__zeros_only__stay_zero() -> None:
    zeros = np.zeros(10, np.float32)
    counts = count_bins(zeros, 0.0)
    assert counts.sum() == 10
    assert percentile_range(ValueRange(0.0, 0.0), counts) == ValueRange(0.0, 0.0)
    assert entropy_range(ValueRange(0.0, 0.0), counts) == ValueRange(0.0, 0.0)


def test_percentile__cuts_both_tails_equally() -> None:
    values = gaussian()
    bounds = percentile_range(seen(values), count_bins(values, seen(values).largest), 99.0)
    low, high = np.percentile(values, [0.5, 99.5])
    width = 2 * seen(values).largest / BINS
    assert bounds.low == pytest.approx(low, abs=2 * width)
    assert bounds.high == pytest.approx(high, abs=2 * width)


def test_ranges__one_sided_values__stay_one_sided() -> None:
    values = np.maximum(gaussian(), 0.0)
    counts = count_bins(values, seen(values).largest)
    for bounds in (percentile_range(seen(values), counts), entropy_range(seen(values), counts)):
        assert bounds.low == 0.0
        assert 1.0 < bounds.high <= values.max()


@pytest.mark.parametrize("zeros", [0.5, 0.9])
def test_entropy__many_zeros__keeps_the_values_beside_them(zeros: float) -> None:
    values = gaussian()
    values = np.where(np.random.default_rng(3).random(values.size) < zeros, 0, np.abs(values))
    values = values.astype(np.float32)
    bounds = entropy_range(seen(values), count_bins(values, seen(values).largest))
    assert bounds.high > 3.5


def test_entropy__behind_a_relu__is_as_near_as_without_zeros() -> None:
    values = np.maximum(gaussian(), 0.0)
    bounds = entropy_range(seen(values), count_bins(values, seen(values).largest))
    assert 3.5 < bounds.high < 4.6
    step = bounds.high / 127
    restored = np.rint(np.clip(values, 0, bounds.high) / step) * step
    assert np.mean((restored - values) ** 2) < 1e-4


def test_entropy__cuts_a_far_outlier_but_no_uniform_edge() -> None:
    outlier = np.append(gaussian(), np.float32(40.0))
    clipped = entropy_range(seen(outlier), count_bins(outlier, 40.0))
    assert 2.5 < clipped.high < 10.0
    uniform = np.random.default_rng(2).uniform(-1, 1, 200_000).astype(np.float32)
    whole = entropy_range(seen(uniform), count_bins(uniform, seen(uniform).largest))
    assert whole.high > 0.95


def test_ranges__are_never_wider_than_the_values() -> None:
    values = gaussian()[:50]
    counts = count_bins(values, seen(values).largest)
    for bounds in (percentile_range(seen(values), counts), entropy_range(seen(values), counts)):
        assert seen(values).low <= bounds.low < bounds.high <= seen(values).high
