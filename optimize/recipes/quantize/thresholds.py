"""From what was seen of an activation to the range that its 8 bits cover. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Even: bin edges lie at 0 and symmetrically round it.
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
        """The part of this range within `low` to `high`."""
        return ValueRange(max(self.low, low), min(self.high, high))

    def joined(self, other: ValueRange) -> ValueRange:
        """The smallest range that holds both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))


def count_bins(values: np.ndarray, largest: float) -> np.ndarray:
    """How many fp32 `values` fall into each of BINS equal bins from -largest to largest."""
    scale = BINS / 2 / largest if largest > 0 else 0.0
    index = (values.ravel() * np.float32(scale) + np.float32(BINS / 2)).astype(np.int32)
    return np.bincount(index.clip(0, BINS - 1), minlength=BINS)


def percentile_range(seen: ValueRange, counts: np.ndarray, percent: float = PERCENT) -> ValueRange:
    """The range without the outermost values: (100 - percent) / 2 per cent on each side."""
    edges = np.linspace(-seen.largest, seen.largest, BINS + 1)
    share = np.cumsum(counts) / counts.sum()
    tail = (100.0 - percent) / 200.0
    first = int(np.searchsorted(share, tail, side="right"))
    last = int(np.searchsorted(share, 1.0 - tail, side="left"))
    return seen.clipped(float(edges[first]), float(edges[min(last, BINS - 1) + 1]))


def entropy_range(seen: ValueRange, counts: np.ndarray) -> ValueRange:
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
    # Of equal losses the widest range, which clips nothing.
    best = len(losses) - 1 - int(np.argmin(losses[::-1]))
    threshold = seen.largest * stops[best] / half
    return seen.clipped(-threshold, threshold)


def _divergence(magnitudes: np.ndarray, stop: int) -> float:
    """D(P || Q) in nats; infinite where the quantized Q has nothing and P has something."""
    inside = magnitudes[:stop]
    wanted = inside.copy()
    wanted[-1] += magnitudes[stop:].sum()
    starts = np.arange(_LEVELS) * stop // _LEVELS
    filled = inside > 0
    sums = np.add.reduceat(inside, starts)
    sizes = np.add.reduceat(filled.astype(np.float64), starts)
    means = np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
    given = np.where(filled, np.repeat(means, np.diff(np.append(starts, stop))), 0.0)
    if wanted.sum() == 0 or given.sum() == 0:
        return np.inf
    p, q = wanted / wanted.sum(), given / given.sum()
    some = p > 0
    if (q[some] == 0).any():
        return np.inf
    return float(np.sum(p[some] * np.log(p[some] / q[some])))
