"""Readings of the meter turned into observations: what both slots did since the tick before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mlctl.bundle.latency import FIRST_TOKEN_EDGES_MS, TOKEN_EDGES_MS
from mlctl.rollout.domain.interfaces import Meter
from mlctl.rollout.domain.machine.state_machine import TickObservation
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.spec import RolloutSpec, Slot
from mlctl.rollout.domain.traffic.counts import (
    Counts,
    LatencyRule,
    Reading,
    Totals,
    Window,
    difference,
)
from mlctl.rollout.domain.traffic.latency_edges import sparse


class TrafficObserver:
    """Watches one rollout. Holds only what may be lost: after a restart it counts from zero.

    `compare` returns what was found of both slots' answers to the same requests since the tick
    before, given how many live requests came in that time; None where nothing is compared.
    """

    def __init__(
        self,
        meter: Meter,
        edges: tuple[float, ...],
        candidate: Slot,
        spec: RolloutSpec,
        compare: Callable[[int], ShadowWindow] | None = None,
        before: Totals | None = None,
    ) -> None:
        self._meter = meter
        self._edges = edges
        self._candidate = candidate
        self._spec = spec
        self._compare_answers = compare
        self._before: Reading | None = None
        self._live_history = before or Totals()
        self._seen: dict[str, Totals] = {}

    def start(self) -> None:
        """Begin counting here, unless it has begun."""
        if self._before is None:
            self._before = self._meter.read()

    def latencies(self) -> dict[str, list[tuple[float | None, int]]]:
        """The last tick's latencies of both sides, for the record: see `latency_edges.sparse`."""
        return {side: sparse(totals, self._edges) for side, totals in self._seen.items()}

    def observe(
        self, *, alive: bool, mirrored: bool = False, weight: int = 100, seconds: float = 0.5
    ) -> tuple[TickObservation, float | None]:
        """Return what happened in the last `seconds`, and the live p99 that tails are counted from.

        A candidate that gets copies only is judged by these. The first tick, and one across a
        restart of the proxy, has no window.
        """
        reading = self._meter.read()
        parts = difference(self._before, reading)
        copies = _copies(self._before, reading, self._candidate)
        before, self._before = self._before, reading
        reference = self._live_history.p99_edge(self._edges)
        healthy = reading.healthy[self._candidate]
        live = None if parts is None else parts[self._candidate.other]
        shadow = self._compare(live, seconds) if mirrored else None
        self._seen = {}
        if parts is None or live is None:
            return TickObservation(None, healthy, alive, shadow), reference
        ours = parts[self._candidate]
        if mirrored and weight == 0:
            ours = copies
        self._seen = {"candidate": ours, "live": live}
        self._live_history = self._live_history.plus(live)
        rule = LatencyRule(
            self._edges,
            self._spec.max_p99_ms,
            reference,
            self._spec.margin,
            self._spec.max_p50_ms,
        )
        window = Window(
            self._with_answers(rule.count(ours, candidate=True), self._candidate, before, reading),
            rule.count(live, candidate=False),
            seconds=seconds,
        )
        return TickObservation(window, healthy, alive, shadow), reference

    def _with_answers(
        self, counts: Counts, slot: Slot, before: Reading | None, reading: Reading
    ) -> Counts:
        """Add the generated answers of `slot` that are beyond the limits of the spec."""
        if before is None or slot not in before.answers or slot not in reading.answers:
            return counts
        times = reading.answers[slot].minus(before.answers[slot])
        if times is None:
            return counts
        ttft, tpot = self._spec.max_ttft_ms, self._spec.max_tpot_ms
        first, each = times.first, times.each
        return replace(
            counts,
            begun=first.timed,
            late_first=0 if ttft is None else first.slower_than(ttft, FIRST_TOKEN_EDGES_MS),
            continued=each.timed,
            slow_tokens=0 if tpot is None else each.slower_than(tpot, TOKEN_EDGES_MS),
        )

    def _compare(self, live: Totals | None, seconds: float) -> ShadowWindow | None:
        if self._compare_answers is None:
            return None
        found = self._compare_answers(0 if live is None else live.requests)
        return replace(found, seconds=seconds)


def _copies(before: Reading | None, after: Reading, slot: Slot) -> Totals:
    """What the copies did between two readings; nothing without one or across a restart."""
    if before is None:
        return Totals()
    now, then = (_shadow(reading.shadow, slot) for reading in (after, before))
    return now.minus(then) or Totals(within=(0,) * len(now.within))


def _shadow(totals: Mapping[Slot, Totals], slot: Slot) -> Totals:
    return totals.get(slot, Totals())
