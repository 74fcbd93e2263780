"""How much is offered: the gaps between requests, and what comes while a batch runs.

Only what comes while the model is busy is counted, and idle time counts as batches in whose
time nothing came: clients that wait for their answers before they ask again can then never
look like more than the model can do, however many they are, nor can one burst after a pause.
As they keep it just busy, and ask now for more and now for less, what is little above that is
overload only if it lasts.
"""

from __future__ import annotations

from math import inf

_GAP_WEIGHT = 1 / 8
# The larger, the shorter the queue that builds up until overload is seen for what it is.
_WEIGHT = 1 / 4
_LASTING_WEIGHT = 1 / 16
# One batch's count is cut off here: after a pause one alone never looks like overload.
_MOST = 3.0
# Above this nobody doubts it; below, when what lasts is so much more than can be done.
_PLAIN = 1.5
_EXCESS = 1 / 4
_MOST_DOUBT = 16.0


class OfferedLoad:
    """Running means over about eight requests and the time of four full batches."""

    def __init__(self, longest_gap: float) -> None:
        """A gap above `longest_gap` seconds counts as that: it is no use waiting for longer."""
        self.gap = longest_gap
        self.last_arrival = -longest_gap
        self.utilization = 0.0
        self._lasting = 0.0  # the same over the time of sixteen batches
        self._longest_gap = longest_gap
        self._units = 0

    @property
    def doubt(self) -> float:
        """Whether more is offered than can be done: 1 is certain, 16 hardly, and inf is not.

        It falls with the third power of the excess that lasts: twice the excess, an eighth.
        """
        if self.utilization <= 1.0:
            return inf
        if self.utilization >= _PLAIN:
            return 1.0
        excess = self._lasting - 1.0
        if excess <= 0:
            return _MOST_DOUBT
        return max(1.0, min(_MOST_DOUBT, (_EXCESS / excess) ** 3))

    def arrived(self, now: float) -> None:
        """A request came."""
        gap = min(now - self.last_arrival, self._longest_gap)
        self.gap += _GAP_WEIGHT * (gap - self.gap)
        self.last_arrival = now

    def offered(self, units: int) -> None:
        """So many rows (requests, if they are not joined) came while a batch ran."""
        self._units += units

    def idle(self, batches: float) -> None:
        """Nothing ran and nothing waited for the time of so many batches."""
        self._count(0.0, batches)

    def skip(self) -> None:
        """What came during the batches that are not yet told of is not counted."""
        self._units = 0

    def ended(self, possible: float, batches: float) -> None:
        """The batch is over, in whose time full ones would have done `possible` units.

        It took as long as so many full `batches`, and counts by that: what comes in a short
        one is no measure of what comes all the time.
        """
        self._count(min(_MOST, self._units / possible) if possible > 0 else 0.0, batches)
        self._units = 0

    def _count(self, share: float, batches: float) -> None:
        self.utilization += (1 - (1 - _WEIGHT) ** batches) * (share - self.utilization)
        self._lasting += (1 - (1 - _LASTING_WEIGHT) ** batches) * (share - self._lasting)
