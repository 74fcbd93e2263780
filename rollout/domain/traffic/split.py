"""A lasting split of the traffic between two revisions, and what was measured of both. Pure.

No gate judges a split. The difference of two shares, or of two mean latencies, has an interval
whose width follows from how much it varies between blocks of time, because the requests of one
burst are not independent. Both sides are counted in the same blocks, so what slows both down at
once cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from statistics import NormalDist
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from mlctl.rollout.domain.spec import Checked, Revision, Slot
from mlctl.rollout.domain.traffic.counts import Totals
from mlctl.rollout.domain.traffic.latency_edges import joined, quantile_edge, sparse

BLOCK_SECONDS = 5.0
# With fewer blocks the variance is too uncertain to show an interval.
MIN_BLOCKS = 20
LEVEL = 0.95
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2.0)


@dataclass(frozen=True, slots=True)
class Split(Checked):
    """The traffic of a deployment is split until an operator ends it.

    Attributes:
        revision: what the slot that is not live serves.
        percent: its share of the traffic.
        sticky: a client keeps its slot.
        started: wall-clock second of the split's begin.
    """

    revision: Revision
    percent: Annotated[int, Field(ge=1, le=99)]
    sticky: bool
    started: float

    def weights(self, live: Slot, *, ready: bool) -> dict[Slot, int]:
        """Return the percent per slot; the live one gets all while the other is not `ready`."""
        share = self.percent if ready else 0
        return {live: 100 - share, live.other: share}


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more the other slot has than the live one, with its interval; None if unknown."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class PairedBlocks:
    """Sums over blocks of time, for the difference of two ratios.

    A block is (live hits, live n, other hits, other n); hits/n is a share or a mean. `products`
    holds the sums of the products of each pair of these, row by row.
    """

    count: int = 0
    sums: tuple[float, ...] = (0.0,) * 4
    products: tuple[float, ...] = (0.0,) * 16

    def add(self, block: Sequence[float]) -> PairedBlocks:
        """Add one block of four numbers."""
        products = (left * right for left in block for right in block)
        return PairedBlocks(
            self.count + 1,
            tuple(map(sum, zip(self.sums, block, strict=True))),
            tuple(map(sum, zip(self.products, products, strict=True))),
        )

    def difference(self) -> Difference | None:
        """Return the other side's ratio less the live one's; None while a side has nothing.

        The interval is the linearized (delta method) one of clusters.
        """
        live_hits, live_n, other_hits, other_n = self.sums
        if not (live_n and other_n):
            return None
        live, other = live_hits / live_n, other_hits / other_n
        if self.count < MIN_BLOCKS:
            return Difference(other - live, None, None)
        slope = (-1.0 / live_n, live / live_n, 1.0 / other_n, -other / other_n)
        pairs = ((left, right) for left in slope for right in slope)
        terms = (
            left * right * product
            for (left, right), product in zip(pairs, self.products, strict=True)
        )
        variance = max(0.0, sum(terms)) * self.count / (self.count - 1)
        margin = _Z * math.sqrt(variance)
        return Difference(other - live, other - live - margin, other - live + margin)


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """What one slot answered. `latencies` are pairs of an edge in ms (None: beyond) and a count."""

    requests: int = 0
    errors: int = 0
    latencies: tuple[tuple[float | None, int], ...] = ()

    def add(self, totals: Totals, edges: Sequence[float]) -> SlotRecord:
        """Add what was counted in one block."""
        counts = joined((self.latencies, sparse(totals, edges)))
        latencies = ((None if math.isinf(edge) else edge, counts[edge]) for edge in sorted(counts))
        total, failed = _failures(totals)
        return SlotRecord(self.requests + total, self.errors + failed, tuple(latencies))

    def quantile(self, share: float) -> float | None:
        """Return the edge in ms within which `share` of the responses came; None with too few."""
        return quantile_edge(joined((self.latencies,)), share)


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """What was measured since the split began: of the live slot, of the other, of their difference.

    `errors` are shares of the requests, `latency` is the mean in milliseconds, from the middles of
    the histogram's buckets.
    """

    live: SlotRecord = field(default_factory=SlotRecord)
    other: SlotRecord = field(default_factory=SlotRecord)
    errors: PairedBlocks = field(default_factory=PairedBlocks)
    latency: PairedBlocks = field(default_factory=PairedBlocks)

    def add(self, block: Mapping[Slot, Totals], live: Slot, edges: Sequence[float]) -> SplitRecord:
        """Add a block of time; one without any request changes nothing."""
        mine, others = block[live], block[live.other]
        (n, failed), (other_n, other_failed) = _failures(mine), _failures(others)
        if not n + other_n:
            return self
        spent = _milliseconds(mine, edges), mine.timed, _milliseconds(others, edges), others.timed
        return SplitRecord(
            self.live.add(mine, edges),
            self.other.add(others, edges),
            self.errors.add((failed, n, other_failed, other_n)),
            self.latency.add(spent),
        )


def _failures(totals: Totals) -> tuple[int, int]:
    """Return all requests, and those that failed or whose client left before the response."""
    total = totals.requests + totals.abandoned
    return total, min(totals.errors, totals.requests) + totals.abandoned


def _milliseconds(totals: Totals, edges: Sequence[float]) -> float:
    """Return the summed latency; a request beyond the last edge counts as that edge."""
    middles = [(low + high) / 2.0 for low, high in pairwise((0.0, *edges))]
    counts = [later - earlier for earlier, later in pairwise((0, *totals.within))]
    beyond = totals.timed - totals.within[-1] if totals.within else 0
    return sum(n * at for n, at in zip(counts, middles, strict=False)) + beyond * edges[-1]
