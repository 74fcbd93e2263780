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


def test_bins_are_those_of_numpy() -> None:
    values = gaussian()
    largest = seen(values).largest
    expected, _ = np.histogram(values.astype(np.float64), BINS, range=(-largest, largest))
    found = count_bins(values, largest)
    assert found.sum() == values.size
    # Only values on a border may differ, by fp32 rounding.
    assert np.abs(found - expected).sum() < 1e-3 * values.size


def test_a_tensor_of_zeros_is_counted_and_keeps_its_range() -> None:
    zeros = np.zeros(10, np.float32)
    counts = count_bins(zeros, 0.0)
    assert counts.sum() == 10
    assert percentile_range(ValueRange(0.0, 0.0), counts) == ValueRange(0.0, 0.0)
    assert entropy_range(ValueRange(0.0, 0.0), counts) == ValueRange(0.0, 0.0)


def test_percentile_cuts_each_tail_by_half_of_what_it_leaves_out() -> None:
    values = gaussian()
    bounds = percentile_range(seen(values), count_bins(values, seen(values).largest), 99.0)
    low, high = np.percentile(values, [0.5, 99.5])
    width = 2 * seen(values).largest / BINS
    assert bounds.low == pytest.approx(low, abs=2 * width)
    assert bounds.high == pytest.approx(high, abs=2 * width)


def test_one_sided_values_keep_their_side() -> None:
    values = np.maximum(gaussian(), 0.0)
    counts = count_bins(values, seen(values).largest)
    for bounds in (percentile_range(seen(values), counts), entropy_range(seen(values), counts)):
        assert bounds.low == 0.0
        assert 1.0 < bounds.high <= values.max()


def test_entropy_gives_up_a_far_outlier_but_not_a_uniform_edge() -> None:
    outlier = np.append(gaussian(), np.float32(40.0))
    clipped = entropy_range(seen(outlier), count_bins(outlier, 40.0))
    assert 2.5 < clipped.high < 10.0
    uniform = np.random.default_rng(2).uniform(-1, 1, 200_000).astype(np.float32)
    whole = entropy_range(seen(uniform), count_bins(uniform, seen(uniform).largest))
    assert whole.high > 0.95


def test_no_calibrator_widens_the_range() -> None:
    values = gaussian()[:50]
    counts = count_bins(values, seen(values).largest)
    for bounds in (percentile_range(seen(values), counts), entropy_range(seen(values), counts)):
        assert seen(values).low <= bounds.low < bounds.high <= seen(values).high
