"""What pods say in /metrics, summed per slot so that a restarted pod takes nothing away. Pure.

A pod counts from zero when its container restarts, so each pod's increments are added up here.
What a pod had counted before it was first seen belongs to no rollout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client.parser import text_string_to_metric_families

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.rollout.domain.traffic.counts import Totals

_REQUESTS = "mlctl_requests_total"
_SECONDS = "mlctl_request_seconds"
_GOOD = "ok"
_GONE = "gone"
# What a client's own limit rejects says nothing of the model.
_THROTTLED = ErrorCode.RATE_LIMIT_EXCEEDED.value
# As at the proxies of this machine: 5xx and a full queue blame the server, the rest the caller.
_FAILURES = frozenset(code.value for code, spec in ERROR_TABLE.items() if spec.http >= 500) | {
    ErrorCode.QUEUE_FULL.value
}
NOTHING = Totals(within=(0,) * len(SERVED_EDGES_MS))


def read_totals(text: str) -> Totals:
    """One pod's counters, over all its models; ValueError if it does not count as we do."""
    answered = errors = blamed = gone = timed = 0
    within = dict.fromkeys(SERVED_EDGES_MS, 0)
    edges: set[float] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            count = int(sample.value)
            if sample.name == _REQUESTS:
                outcome = sample.labels.get("outcome", "")
                if outcome == _THROTTLED:
                    continue
                gone += count * (outcome == _GONE)
                answered += count * (outcome != _GONE)
                known = outcome in ERROR_TABLE and outcome not in _FAILURES
                blamed += count * known
                errors += count * (not known and outcome not in (_GOOD, _GONE))
            elif sample.name == f"{_SECONDS}_count":
                timed += count
            elif sample.name == f"{_SECONDS}_bucket":
                edge = round(float(sample.labels["le"]) * 1000.0, 6)
                edges.add(edge)
                if edge in within:
                    within[edge] += count
    if not edges.issuperset(SERVED_EDGES_MS):
        raise ValueError(f"no {_SECONDS} with the edges of this version")
    return Totals(answered, errors, timed, tuple(within.values()), blamed, gone)


class PodTally:
    """Increments of one slot's pods. `total` only rises."""

    def __init__(self) -> None:
        self.total = NOTHING
        self._last: dict[str, Totals] = {}

    def add(self, totals: Mapping[str, Totals], present: Collection[str]) -> None:
        """Add the counts since the last scrape, and drop pods that are not `present`."""
        for uid, now in totals.items():
            before = self._last.get(uid)
            self._last[uid] = now
            if before is not None:
                # A counter that fell began anew: all of it is new.
                self.total = self.total.plus(now.minus(before) or now)
        self._last = {uid: last for uid, last in self._last.items() if uid in present}
