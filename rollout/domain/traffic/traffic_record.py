"""The live slot's recent traffic, the reference of a rollout that begins. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.traffic.counts import Counts, LatencyRule, Totals

BLOCK_SECONDS = 5.0
_KEPT_SECONDS = 1800.0


class TrafficRecord:
    """Half an hour of one slot's counters in blocks of five seconds.

    It lives in the daemon's memory: after a restart of the daemon it is empty, and a rollout then
    measures bursts from its own traffic alone.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Totals, float]] = deque(maxlen=int(_KEPT_SECONDS / BLOCK_SECONDS))
        self._before: tuple[Totals, float] | None = None

    def due(self, now: float) -> bool:
        """Return whether a block is over at `now`, in monotonic seconds."""
        return self._before is None or now - self._before[1] >= BLOCK_SECONDS

    def add(self, totals: Totals, now: float) -> None:
        """Close a block with the slot's rising `totals`; a restarted proxy begins a new one."""
        if self._before is not None:
            earlier, since = self._before
            counted = totals.minus(earlier)
            if counted is not None:
                self._blocks.append((counted, now - since))
        self._before = (totals, now)

    def forget(self) -> None:
        """Begin anew: the slot serves another revision."""
        self._blocks.clear()
        self._before = None

    def pause(self) -> None:
        """Keep the blocks, but not the time until the next `add`."""
        self._before = None

    @property
    def total(self) -> Totals:
        """All blocks together."""
        total = Totals()
        for totals, _seconds in self._blocks:
            total = total.plus(totals)
        return total

    def counts(self, spec: RolloutSpec, edges: tuple[float, ...]) -> Iterator[tuple[Counts, float]]:
        """Yield each block as counts under the limits of `spec`, with its seconds."""
        reference = self.total.p99_edge(edges)
        rule = LatencyRule(edges, spec.max_p99_ms, reference, spec.margin, spec.max_p50_ms)
        for totals, seconds in self._blocks:
            yield rule.count(totals, candidate=False), seconds
