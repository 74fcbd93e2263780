"""How much is offered: the gaps between requests, and what comes while a batch runs.

Only what comes while the model is busy is counted, and idle time counts as batches in whose
time nothing came: clients that wait for their answers before they ask again can then never
look like more than the model can do, however many they are, nor can one burst after a pause.
"""

from __future__ import annotations

_GAP_WEIGHT = 1 / 8
# The larger, the shorter the queue that builds up until overload is seen for what it is.
_WEIGHT = 1 / 4
# One batch's count is cut off here: after a pause one alone never looks like overload.
_MOST = 3.0
# What is remembered at the most when another size of batches turns out to be better.
_FORGOTTEN = 0.75


class OfferedLoad:
    """Running means over about eight requests and the time of four full batches."""

    def __init__(self, longest_gap: float) -> None:
        """A gap above `longest_gap` seconds counts as that: it is no use waiting for longer."""
        self.gap = longest_gap
        self.last_arrival = -longest_gap
        self.utilization = 0.0
        self._longest_gap = longest_gap
        self._units = 0

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
        self.utilization *= (1 - _WEIGHT) ** batches

    def forget(self) -> None:
        """What can be done has changed: what was offered before is held to be less than that."""
        self.utilization = min(self.utilization, _FORGOTTEN)

    def ended(self, possible: float, batches: float) -> None:
        """The batch is over, in whose time full ones would have done `possible` units.

        It took as long as so many full `batches`, and counts by that: what comes in a short
        one is no measure of what comes all the time.
        """
        share = min(_MOST, self._units / possible) if possible > 0 else 0.0
        self.utilization += (1 - (1 - _WEIGHT) ** batches) * (share - self.utilization)
        self._units = 0
