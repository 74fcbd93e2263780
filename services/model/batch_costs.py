"""Estimate the duration of a batch from its rows, learned from completed batches. Pure.

Batches are sorted into cells that double in size. A cell's estimate is the median of its last few
batches: one stall does not change it, a lasting change does within four batches, and large batches
do not affect the estimate of small ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

_NEWEST = 7
NOTHING_MEASURED: Mapping[int, float] = MappingProxyType({})


class BatchCosts:
    """Estimated seconds by rows; `measured` are the batches that the warm-up timed."""

    def __init__(self, measured: Mapping[int, float] = NOTHING_MEASURED) -> None:
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._medians: dict[int, tuple[float, int]] = {}
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self._cache: dict[int, float] = {}
        for rows, seconds in measured.items():
            self.observe(rows, seconds)

    @property
    def median_seconds(self) -> Mapping[int, float]:
        """The rows and seconds of each cell's median batch."""
        return dict(zip(self._rows, self._seconds, strict=True))

    def observe(self, rows: int, seconds: float) -> None:
        """Record that a batch of `rows` rows took `seconds`."""
        cell = (rows - 1).bit_length()
        samples = self._samples.get(cell)
        if samples is None:
            samples = self._samples[cell] = deque(maxlen=_NEWEST)
        samples.append((seconds, rows))
        middle = sorted(samples)[len(samples) // 2]
        if middle != self._medians.get(cell):
            self._medians[cell] = middle
            self._fit()

    def seconds(self, rows: int) -> float:
        """Return the expected seconds of a batch of `rows` rows; 0 before the first measurement.

        Monotone in `rows`: linear between measured sizes, proportional above the largest one, and
        constant below the smallest one.
        """
        found = self._cache.get(rows)
        if found is None:
            found = self._cache[rows] = self._interpolate(rows)
        return found

    def _interpolate(self, rows: int) -> float:
        if not self._rows:
            return 0.0
        above = bisect_left(self._rows, rows)
        if above == 0:
            return self._seconds[0]
        if above == len(self._rows):
            return self._seconds[-1] * rows / self._rows[-1]
        low, high = self._rows[above - 1], self._rows[above]
        share = (rows - low) / (high - low)
        return self._seconds[above - 1] + share * (self._seconds[above] - self._seconds[above - 1])

    def _fit(self) -> None:
        medians = [self._medians[cell] for cell in sorted(self._medians)]
        self._rows = [rows for _, rows in medians]
        self._seconds = [seconds for seconds, _ in medians]
        # Fewer rows never take longer than more rows. This corrects an old, slow measurement of a
        # size that no longer occurs.
        for index in range(len(medians) - 2, -1, -1):
            self._seconds[index] = min(self._seconds[index], self._seconds[index + 1])
        self._cache = {}
