"""Choose the rows of a full batch: the size with the most rows per second. Pure.

Larger is not always faster: where activations outgrow the processor's cache, several small batches
can beat one large one. Sizes that are not in use are tried from time to time to keep their
measurements fresh. A busy machine slows all sizes, so a size that seems better is measured again
before it is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.runtime.batch_costs import BatchCosts

# A smaller size is chosen only if it is better by this part: less may be chance.
_WORTH = 0.05
# The share of time under load that trials of other sizes may cost.
_TRIED = 0.003
# The number of new measurements after which older ones of a size no longer count.
_MEASURED = 4


class BatchSize:
    """The size of the next batch, one of `sizes` (rows, rising), by the measured costs."""

    def __init__(self, costs: BatchCosts, sizes: Sequence[int]) -> None:
        self._costs = costs
        self._sizes = tuple(sizes)
        self.largest = self._sizes[-1]
        self.best = self._find_best()
        self.next = self.best  # differs during a trial
        self._better = self.best  # the size that is measured again, and how often it was
        self._measured = 0
        self._spare = 0.0
        self._turn = 0

    def ended(self, rows: int, seconds: float, waiting: int) -> None:
        """Record that a batch of `rows` rows took `seconds`; `waiting` rows are queued."""
        if len(self._sizes) == 1:
            return
        if waiting or rows > 1:
            self._choose()
            # At most the cost of one trial of the largest size is saved up.
            self._spare = min(self._spare + _TRIED * seconds, self._costs.seconds(self.largest))
        if self._better != self.best:
            self.next = self._better
        elif self.next != self.best:  # no trial after a trial
            self.next = self.best
        else:
            self.next = self._trial(rows, waiting) or self.best

    def _choose(self) -> None:
        """Switch to a better size once it was measured often enough."""
        better = self._find_best()
        if better != self._better:
            self._better, self._measured = better, 0
        elif better != self.best:
            self._measured += 1
            if self._measured >= _MEASURED:
                self.best = better

    def _find_best(self) -> int:
        best, most = self.largest, self._rate(self.largest)
        for size in self._sizes[-2::-1]:
            rate = self._rate(size)
            if rate > most * (1 + _WORTH):
                best, most = size, rate
        return best

    def _rate(self, rows: int) -> float:
        """Return the rows per second in batches of `rows`; 0 before any measurement."""
        seconds = self._costs.seconds(rows)
        return rows / seconds if seconds > 0 else 0.0

    def _trial(self, rows: int, waiting: int) -> int | None:
        """Return the size to try next, if the queue can fill it and the saved time covers its cost.

        The demand includes the rows just answered: their clients may send again.
        """
        demand = max(rows, waiting)
        others = [
            size
            for below, size in zip((0, *self._sizes), self._sizes, strict=False)
            if (size < min(self.best, demand)) or (self.best < size and below < waiting)
        ]
        usual = self._costs.seconds(self.best) / self.best
        if not others or usual <= 0:
            return None
        size = others[self._turn % len(others)]
        tried = min(size, demand)
        seconds = self._costs.seconds(tried)
        # Never free, or sizes of about equal speed would be tried most of the time.
        price = max(seconds - tried * usual, _WORTH * seconds)
        if price > self._spare:
            return None
        self._spare -= price
        self._turn += 1
        return size
