"""A rollout's events as series over time: one point for some seconds of ticks. Pure.

The same events give the same points, from wherever it is gone on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlctl.rollout.domain.traffic.latency_edges import Sparse, joined, quantile_edge
from mlctl.rollout.journal.records import TICK, JournalEvent, Rollout

POINT_SECONDS = 5.0
# p99 needs more requests than a few seconds have.
LATENCY_SECONDS = 30.0
SIDES = ("candidate", "live")
_QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99}


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Values at a moment in wall-clock seconds; `age` is in seconds since the rollout's begin.

    `seq` is the last event in it. `values` is by the name of the series.
    """

    seq: int
    at: float
    age: float
    values: Mapping[str, float]


class Series:
    """Folds the events of one rollout, in their order, into points."""

    def __init__(self, rollout: Rollout) -> None:
        self._begun = rollout.created
        self._threshold = math.log10(1.0 / rollout.spec.alpha)
        self._last = rollout.created
        self._waiting: list[JournalEvent] = []
        self._recent: deque[tuple[float, Mapping[str, Sparse]]] = deque()

    def add(self, event: JournalEvent) -> SeriesPoint | None:
        """Take one event in; the point that it finds complete, if any."""
        if "weight" not in event.body:
            return None
        first = self._waiting[0] if self._waiting else event
        done = self.end() if self._slot(event) != self._slot(first) else None
        self._waiting.append(event)
        return done

    def end(self) -> SeriesPoint | None:
        """The point of what came since the last one; None if nothing did."""
        if not self._waiting:
            return None
        events, self._waiting = self._waiting, []
        last = events[-1]
        values = {"weight": float(last.body["weight"]), "step": float(last.body["step"])}
        if ticks := [event for event in events if event.kind == TICK]:
            values |= self._of_ticks(ticks, max(last.at - self._last, 1e-3))
        self._last = last.at
        return SeriesPoint(last.seq, last.at, last.at - self._begun, values)

    def _slot(self, event: JournalEvent) -> int:
        return math.floor((event.at - self._begun) / POINT_SECONDS)

    def _of_ticks(self, ticks: list[JournalEvent], seconds: float) -> dict[str, float]:
        values: dict[str, float] = {}
        for side in SIDES:
            counts = [event.body["window"][side] for event in ticks]
            requests = sum(each["requests"] for each in counts)
            values[f"{side}/requests_per_second"] = requests / seconds
            if requests:
                values[f"{side}/error_share"] = sum(each["errors"] for each in counts) / requests
        body = ticks[-1].body
        return {**values, **self._latencies(ticks), **self._answers(ticks), **self._evidence(body)}

    def _latencies(self, ticks: list[JournalEvent]) -> dict[str, float]:
        self._recent.extend((event.at, event.body.get("latencies", {})) for event in ticks)
        while self._recent[0][0] < self._recent[-1][0] - LATENCY_SECONDS:
            self._recent.popleft()
        values = {}
        for side in SIDES:
            parts = (latencies.get(side, []) for _, latencies in self._recent)
            counts = joined(parts)
            for name, share in _QUANTILES.items():
                if (edge := quantile_edge(counts, share)) is not None:
                    values[f"{side}/{name}"] = edge
        return values

    def _answers(self, ticks: list[JournalEvent]) -> dict[str, float]:
        """Agreement over the whole rollout, accuracy by the labels, and the outputs' drift."""
        disagreed, requests = ticks[-1].body.get("compared", (0.0, 0))
        values = {"agreement": 1.0 - disagreed / requests} if requests else {}
        for side, (wrong, labelled) in (ticks[-1].body.get("labelled") or {}).items():
            if labelled:
                values[f"{side}/accuracy"] = 1.0 - wrong / labelled
        psi = (ticks[-1].body.get("shadow") or {}).get("psi")
        return values if psi is None else {**values, "psi": psi}

    def _evidence(self, body: Mapping[str, Any]) -> dict[str, float]:
        """Decimal logarithms, because e-values grow by powers."""
        against = {f"log10_e/{gate}": _log10(e) for gate, e in body["e_values"].items()}
        proofs = {f"log10_proof/{gate}": _log10(e) for gate, e in body.get("proofs", {}).items()}
        return {**against, **proofs, "log10_threshold": self._threshold}


def _log10(value: float) -> float:
    return math.log10(max(value, 1e-300))
