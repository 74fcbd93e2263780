"""Measure the offered load: arrivals while a batch runs.

Only arrivals during a busy model count, and idle time counts as batches without arrivals. So
closed-loop clients never look like overload, however many they are, nor does one burst after a
pause. Closed-loop clients keep the model just busy with fluctuating demand, so a small excess is
overload only if it lasts.
"""

from __future__ import annotations

from math import inf

# A larger weight detects overload sooner, with a shorter queue.
_WEIGHT = 1 / 4
_LASTING_WEIGHT = 1 / 16
# The count of one batch is clipped here: one batch after a pause never looks like overload.
_MAX_UTILIZATION = 3.0
# Above this utilization overload is certain; below, with this lasting excess.
_PLAIN = 1.5
_EXCESS = 1 / 4
# Clients that wait for their answers, with requests of many sizes, are rejected from 4 down.
_MAX_DOUBT = 8.0


class OfferedLoad:
    """Running means over the time of four full batches."""

    def __init__(self) -> None:
        self.utilization = 0.0
        self._lasting = 0.0  # the same over the time of sixteen batches
        self._units = 0

    @property
    def doubt(self) -> float:
        """Return the doubt about overload: 1 is certain, 8 is unlikely, inf is none.

        It falls with the third power of the lasting excess: twice the excess, an eighth.
        """
        if self.utilization <= 1.0:
            return inf
        if self.utilization >= _PLAIN:
            return 1.0
        excess = self._lasting - 1.0
        if excess <= 0:
            return _MAX_DOUBT
        return max(1.0, min(_MAX_DOUBT, (_EXCESS / excess) ** 3))

    def offered(self, units: int) -> None:
        """Record rows (requests, if they are not joined) that arrived while a batch ran."""
        self._units += units

    def idle(self, batches: float) -> None:
        """Record idle time as a number of full batches."""
        self._count(0.0, batches)

    def ended(self, possible: float, batches: float) -> None:
        """Record the end of a batch, in whose time full batches process `possible` units.

        It lasted as long as `batches` full batches and is weighted by that: arrivals during a short
        batch say little about the average.
        """
        self._count(min(_MAX_UTILIZATION, self._units / possible) if possible > 0 else 0.0, batches)
        self._units = 0

    def _count(self, share: float, batches: float) -> None:
        self.utilization += (1 - (1 - _WEIGHT) ** batches) * (share - self.utilization)
        self._lasting += (1 - (1 - _LASTING_WEIGHT) ** batches) * (share - self._lasting)
