"""Ranges that 8 bits cover, from minima, maxima and histograms of activations. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Even, so that bin edges lie at 0 and symmetrically around it.
BINS = 4096
PERCENT = 99.99

_LEVELS = 128
_STRIDE = 8


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The lowest and highest value, both finite."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        return max(-self.low, self.high)

    def clipped(self, low: float, high: float) -> ValueRange:
        """Return the part of this range within `low` to `high`."""
        return ValueRange(max(self.low, low), min(self.high, high))

    def union(self, other: ValueRange) -> ValueRange:
        """Return the smallest range that contains both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))


def count_bins(values: np.ndarray, largest: float) -> np.ndarray:
    """Count the fp32 `values` in each of BINS equal bins from -largest to largest."""
    scale = BINS / 2 / largest if largest > 0 else 0.0
    index = (values.ravel() * np.float32(scale) + np.float32(BINS / 2)).astype(np.int32)
    return np.bincount(index.clip(0, BINS - 1), minlength=BINS)


def percentile_range(
    observed: ValueRange, counts: np.ndarray, percent: float = PERCENT
) -> ValueRange:
    """Return the range without the outermost (100 - percent) / 2 % of values on each side."""
    edges = np.linspace(-observed.largest, observed.largest, BINS + 1)
    share = np.cumsum(counts) / counts.sum()
    tail = (100.0 - percent) / 200.0
    first = int(np.searchsorted(share, tail, side="right"))
    last = int(np.searchsorted(share, 1.0 - tail, side="left"))
    return observed.clipped(float(edges[first]), float(edges[min(last, BINS - 1) + 1]))


def entropy_range(observed: ValueRange, counts: np.ndarray) -> ValueRange:
    """Return the symmetric range whose 128 levels lose the least information (Kullback-Leibler).

    S. Migacz, "8-bit Inference with TensorRT", GTC 2017: for every threshold the
    distribution of magnitudes, with all beyond it in the last bin, is compared with its
    own quantization. The bin at zero takes the count of its neighbour, as in NVIDIA's
    calibrators: zero is exact at every threshold, and the many zeros behind a ReLU would
    otherwise outweigh the values that the threshold cuts off.
    """
    half = BINS // 2
    magnitudes = (counts[half:] + counts[:half][::-1]).astype(np.float64)
    magnitudes[0] = magnitudes[1]
    stops = range(_LEVELS, half + 1, _STRIDE)
    losses = [_divergence(magnitudes, stop) for stop in stops]
    # Of equal losses the widest range, which clips least.
    best = len(losses) - 1 - int(np.argmin(losses[::-1]))
    threshold = observed.largest * stops[best] / half
    return observed.clipped(-threshold, threshold)


def _divergence(magnitudes: np.ndarray, stop: int) -> float:
    """Return D(P || Q) in nats; infinite where the quantized Q is zero and P is not."""
    inside = magnitudes[:stop]
    expected = inside.copy()
    expected[-1] += magnitudes[stop:].sum()
    starts = np.arange(_LEVELS) * stop // _LEVELS
    filled = inside > 0
    sums = np.add.reduceat(inside, starts)
    sizes = np.add.reduceat(filled.astype(np.float64), starts)
    means = np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
    quantized = np.where(filled, np.repeat(means, np.diff(np.append(starts, stop))), 0.0)
    if expected.sum() == 0 or quantized.sum() == 0:
        return np.inf
    p, q = expected / expected.sum(), quantized / quantized.sum()
    some = p > 0
    if (q[some] == 0).any():
        return np.inf
    return float(np.sum(p[some] * np.log(p[some] / q[some])))
