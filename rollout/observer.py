"""Readings of the meter turned into looks: what both colours did since the look before."""

from __future__ import annotations

from rollout.counts import LatencyRule, Reading, Totals, Window, difference
from rollout.machine import Look
from rollout.model import Colour, RolloutSpec
from rollout.ports import Meter


class Observer:
    """Watches one rollout. Holds only what may be lost: a restart begins counting anew."""

    def __init__(
        self, meter: Meter, edges: tuple[float, ...], candidate: Colour, spec: RolloutSpec
    ) -> None:
        self._meter = meter
        self._edges = edges
        self._candidate = candidate
        self._spec = spec
        self._before: Reading | None = None
        self._live_history = Totals()

    def start(self) -> None:
        """Begin counting here, unless it has begun."""
        if self._before is None:
            self._before = self._meter.read()

    def look(self, *, alive: bool) -> tuple[Look, float | None]:
        """One look, and the live p99 that its tails were counted against.

        The first look, and one across a restart of the proxy, has no window.
        """
        reading = self._meter.read()
        parts = difference(self._before, reading)
        self._before = reading
        reference = self._live_history.p99_edge(self._edges)
        healthy = reading.healthy[self._candidate]
        if parts is None:
            return Look(None, healthy, alive), reference
        spec, live = self._spec, parts[self._candidate.other]
        rule = LatencyRule(self._edges, spec.max_p99_ms, reference, spec.margin)
        self._live_history = self._live_history.plus(live)
        window = Window(
            rule.count(parts[self._candidate], candidate=True), rule.count(live, candidate=False)
        )
        return Look(window, healthy, alive), reference
