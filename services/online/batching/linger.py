"""Decide whether to hold a batch briefly for closed-loop clients to send their next request. Pure.

While a batch runs, the clients of the previous batch send their next requests. Those form the next
batch, so two halves of the clients alternate in half-size batches, although one batch of all would
be faster. Whether clients return that soon is not known in advance: the scheduler tries a wait
occasionally and repeats it while it pays.
"""

from __future__ import annotations

from math import inf

from mlctl.services.model.batch_costs import BatchCosts

_WEIGHT = 1 / 8
# One of this many opportunities is used to test whether waiting pays.
_TRIED = 16
# Waiting pays if it gains this share of the maximum wait on average; less may be chance.
_WORTH = 0.05
# Below this the clock of an event loop is too coarse.
_MIN_SECONDS = 0.0005
# The wait ends early after this share of the maximum wait without an arrival.
_QUIET = 1 / 4


class LingerHeuristic:
    """The wait after a batch, from the batches that ended and the requests that arrived."""

    def __init__(self, costs: BatchCosts, max_rows: int, max_wait: float = inf) -> None:
        """A wait takes at most `max_wait` seconds."""
        self._costs = costs
        self._max_rows = max_rows
        self._max_wait = max_wait
        self._worth = 0.0
        self._passed = _TRIED
        # The rows and the end of the last batch, and the rows that arrived since.
        self._answered = 0
        self._ended = 0.0
        self._back = 0
        # The current wait: expected rows, start, queued rows at the start, and maximum duration.
        self._expected = 0
        self._began = self._last = 0.0
        self._waiting = self._came = 0
        self._patience = 0.0

    def ended(self, rows: int, moment: float) -> None:
        """Record that a batch of `rows` rows was answered: its clients may send again."""
        self._answered, self._ended, self._back = rows, moment, 0

    def arrived(self, rows: int, now: float) -> None:
        """Record a request that arrived while nothing ran."""
        self._back += rows
        self._last = now

    def may_linger(self, rows: int, now: float) -> bool:
        """Whether a request that arrives at an empty queue is likely the first of many."""
        others = self._answered - rows
        if self._worth <= _WORTH or others <= 0:
            return False
        return now < self._ended + self._saved(rows, min(others, self._max_rows - rows))

    def until(self, rows: int, now: float) -> float:
        """Return until when to hold back a batch of `rows` rows, all that can run now."""
        if self._answered:
            self._begin(rows, now)
        if self._back >= self._expected:
            return -inf
        return min(self._began + self._patience, self._last + _QUIET * self._patience)

    def released(self, now: float) -> None:
        """Record that the batch starts; if it was held back, learn whether that paid."""
        if self._expected:
            back = min(self._back, self._expected) - self._came
            share = (self._saved(self._waiting, back) - (now - self._began)) / self._patience
            # Clipped: one stall of the machine must not outweigh everything else.
            self._worth += _WEIGHT * (max(-1.0, min(1.0, share)) - self._worth)
        self._answered = self._expected = self._back = 0

    def _begin(self, rows: int, now: float) -> None:
        """Decide at the first opportunity after a batch whether to wait."""
        expected = min(self._answered, self._max_rows - rows + self._back)
        self._answered = 0
        more = expected - self._back
        patience = self._saved(rows, more) if more > 0 else 0.0
        if patience < _MIN_SECONDS:
            return
        if self._worth <= _WORTH and self._passed < _TRIED:
            self._passed += 1
            return
        self._passed = 0
        self._expected, self._waiting, self._came = expected, rows, self._back
        self._patience = patience
        self._began = self._last = now

    def _saved(self, waiting: int, back: int) -> float:
        """Return the maximum time for which `waiting` rows may wait for `back` more, if that pays.

        With c(n) the cost of a batch, one batch saves c(w) + c(b) - c(w + b). That holds for
        closed-loop clients. With random arrivals the b rows would share the next batch anyway, so
        the rate must not fall either: (w + b) / (wait + c(w + b)) > w / c(w), which no wait
        satisfies while the model keeps up with the arrivals.
        """
        if back <= 0:
            return 0.0
        alone, joined = self._costs.seconds(waiting), self._costs.seconds(waiting + back)
        return min(
            alone + self._costs.seconds(back) - joined,
            alone * (waiting + back) / waiting - joined,
            self._max_wait,
        )
