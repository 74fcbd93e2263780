"""Decide whether to hold a batch briefly for closed-loop clients to send their next request. Pure.

While a batch runs, the clients of the one before it ask again. They make the next batch, so two
halves of the clients take turns in batches of half the size for ever, though all of them in one
would be done sooner. Whether clients do come back so soon is not known, so it is tried now and
then, and done as long as it pays.
"""

from __future__ import annotations

from math import inf

from services.online.batching.batch_size import BatchSize
from services.runtime.batch_costs import BatchCosts

_WEIGHT = 1 / 8
# One chance in so many is taken to see whether it pays by now.
_TRIED = 16
# It pays if so much of the patience is gained by a wait, on average; less may be chance.
_WORTH = 0.05
# Below this the clock of an event loop is too coarse.
_LEAST_SECONDS = 0.0005
# If for this part of the patience nobody came, nobody is expected any more.
_QUIET = 1 / 4


class LingerHeuristic:
    """The wait after a batch: told what ended and who came, it says until when to hold back."""

    def __init__(self, costs: BatchCosts, size: BatchSize) -> None:
        self._costs = costs
        self._size = size
        self._worth = 0.0
        self._passed = _TRIED
        # Since the last batch ended: the rows it had, when that was, and the rows that came.
        self._answered = 0
        self._ended = 0.0
        self._back = 0
        # The wait, while there is one: for how many rows, from when, with whom, and how long.
        self._expected = 0
        self._began = self._last = 0.0
        self._waiting = self._came = 0
        self._patience = 0.0

    def ended(self, rows: int, moment: float) -> None:
        """A batch of `rows` rows has been answered, and they may come back."""
        self._answered, self._ended, self._back = rows, moment, 0

    def arrived(self, rows: int, now: float) -> None:
        """A request came while nothing ran."""
        self._back += rows
        self._last = now

    def may_linger(self, rows: int, now: float) -> bool:
        """Whether a request that finds nobody is the first of many, as far as is known."""
        others = self._answered - rows
        if self._worth <= _WORTH or others <= 0:
            return False
        return now < self._ended + self._saved(rows, min(others, self._size.best - rows))

    def until(self, rows: int, now: float) -> float:
        """Until when a batch of `rows` rows, all that may run now, is to be held back."""
        if self._answered:
            self._begin(rows, now)
        if self._back >= self._expected:
            return -inf
        return min(self._began + self._patience, self._last + _QUIET * self._patience)

    def released(self, now: float) -> None:
        """A batch runs: no matter who comes now. If it was held back, was that worth it?"""
        if self._expected:
            back = min(self._back, self._expected) - self._came
            share = (self._saved(self._waiting, back) - (now - self._began)) / self._patience
            # Cut off: one stall of the machine must not outweigh all else.
            self._worth += _WEIGHT * (max(-1.0, min(1.0, share)) - self._worth)
        self._answered = self._expected = self._back = 0

    def _begin(self, rows: int, now: float) -> None:
        """The first look after a batch: is there a chance, and is it taken?"""
        expected = min(self._answered, self._size.best - rows + self._back)
        self._answered = 0
        more = expected - self._back
        patience = self._saved(rows, more) if more > 0 else 0.0
        if patience < _LEAST_SECONDS:
            return
        if self._worth <= _WORTH and self._passed < _TRIED:
            self._passed += 1
            return
        self._passed = 0
        self._expected, self._waiting, self._came = expected, rows, self._back
        self._patience = patience
        self._began = self._last = now

    def _saved(self, waiting: int, back: int) -> float:
        """For how long `waiting` rows may wait for `back` more, at the most, so that it pays.

        With c(n) the cost of a batch, one batch saves c(w) + c(b) - c(w + b). That is right for
        clients in a loop. Where requests come by chance, the b would find company in the next
        batch, so the rate must not fall either: (w + b) / (wait + c(w + b)) > w / c(w), which
        no wait reaches as long as the model keeps up with what comes.
        """
        if back <= 0:
            return 0.0
        alone, joined = self._costs.seconds(waiting), self._costs.seconds(waiting + back)
        return min(
            alone + self._costs.seconds(back) - joined,
            alone * (waiting + back) / waiting - joined,
        )
