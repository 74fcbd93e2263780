"""How many rows make a full batch: as many as let the model do most rows a second. Pure.

More rows in a batch are not always better: where a model's activations outgrow the
processor's cache, eight at a time may be done sooner than the same rows in one pass.
What is not run is not measured, so the sizes not chosen have a turn now and then; and as a
busy machine makes all sizes slower, one that seems better is measured anew before it is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.runtime.batch_costs import BatchCosts

# A smaller size is chosen only if it is better by this part: less may be chance.
_WORTH = 0.05
# The part of the time under load that trials of other sizes may cost.
_TRIED = 0.003
# So many new measurements outweigh the older ones of a size.
_MEASURED = 4


class BatchSize:
    """Chooses among `sizes`, in rows and rising, by what the costs say; told what ended."""

    def __init__(self, costs: BatchCosts, sizes: Sequence[int]) -> None:
        self._costs = costs
        self._sizes = tuple(sizes)
        self.largest = self._sizes[-1]
        self.best = self._find_best()
        self.next = self.best  # the same but for a trial
        self._better = self.best  # what is measured anew, and how often it was
        self._measured = 0
        self._spare = 0.0
        self._turn = 0

    def ended(self, rows: int, seconds: float, waiting: int) -> None:
        """A batch of `rows` rows took `seconds`; so many rows are `waiting` for the next one."""
        if len(self._sizes) == 1:
            return
        if waiting or rows > 1:
            self._choose()
            # Saved up for no more than one trial of the largest.
            self._spare = min(self._spare + _TRIED * seconds, self._costs.seconds(self.largest))
        if self._better != self.best:
            self.next = self._better
        elif self.next != self.best:  # no trial after a trial
            self.next = self.best
        else:
            self.next = self._trial(rows, waiting) or self.best

    def _choose(self) -> None:
        """Go over to a better size as soon as it was measured often enough."""
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
        """Rows per second in batches of `rows`; 0 if nothing is known, and then for any size."""
        seconds = self._costs.seconds(rows)
        return rows / seconds if seconds > 0 else 0.0

    def _trial(self, rows: int, waiting: int) -> int | None:
        """The size whose turn it is, if a batch would have it and there is time to spare for it.

        As many as were just answered may be back before a smaller one begins.
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
        # Never free: sizes that are about as good would have most of the turns.
        price = max(seconds - tried * usual, _WORTH * seconds)
        if price > self._spare:
            return None
        self._spare -= price
        self._turn += 1
        return size
