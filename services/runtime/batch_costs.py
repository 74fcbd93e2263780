"""How long a batch takes by its rows, learned from the batches that ran. Pure.

Batches are sorted into cells that double in size. A cell stands for the one of its newest
few batches that took the median time: one stall does not move it, a lasting change does
within four batches, and a burst of large batches tells nothing about small ones, so there
is nothing to recover from when it is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

_NEWEST = 7
NOTHING_MEASURED: Mapping[int, float] = MappingProxyType({})


class BatchCosts:
    """Seconds by rows; `measured` are the batches that the warm-up timed."""

    def __init__(self, measured: Mapping[int, float] = NOTHING_MEASURED) -> None:
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._medians: dict[int, tuple[float, int]] = {}
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self._known: dict[int, float] = {}
        for rows, seconds in measured.items():
            self.observe(rows, seconds)

    @property
    def known(self) -> Mapping[int, float]:
        """The sizes that stand for their cells, with their seconds."""
        return dict(zip(self._rows, self._seconds, strict=True))

    def observe(self, rows: int, seconds: float) -> None:
        """A batch of `rows` rows took `seconds`."""
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
        """What a batch of `rows` rows is expected to take: 0 as long as none has been seen.

        Never less for more rows. Between the known sizes it is a line, above the largest
        it is in proportion, below the smallest it is that one's.
        """
        known = self._known.get(rows)
        if known is None:
            known = self._known[rows] = self._interpolate(rows)
        return known

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
        # What more rows were done in bounds what fewer take: an old, slow measurement of a
        # size that is not used any more would otherwise never be put right.
        for index in range(len(medians) - 2, -1, -1):
            self._seconds[index] = min(self._seconds[index], self._seconds[index + 1])
        self._known = {}
