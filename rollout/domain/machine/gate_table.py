"""The gates on traffic, one entry each: what counts as a hit, and what it is judged against. Pure.

A new gate is a new member of `Gate` and one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Gate, Hits
from mlctl.rollout.domain.traffic.counts import Counts

# p99 <= L is the same statement as P(latency > L) <= 1 %, p50 <= L as P(latency > L) <= 50 %.
SLOW_SHARE = 0.01
LATE_SHARE = 0.5
# Of generated answers there are fewer: p95 <= L.
SLOW_ANSWER_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class GrossRule:
    """When a fault is too large to wait for evidence over blocks of time.

    It takes at least `hits` hits in successive ticks of at least `seconds` together. At least
    `share` of their requests were hits, half of that in each tick, and twice as many as on the live
    slot, in its worst burst too.
    """

    share: float
    seconds: float
    hits: int


@dataclass(frozen=True, slots=True)
class GateRule:
    """One gate on traffic.

    Attributes:
        hits: (hits, requests) of one slot's counts.
        words: what a hit did, after "3 of 753 requests"; `{p50:g}`, `{p99:g}`, `{ttft:g}` and
            `{tpot:g}` are the limits.
        limit: the share that may be hits, None where the spec has no such limit; for a gate that
            compares with the live slot: how much more than the live share is still equal.
        versus_live: compares with the live slot instead of an absolute limit.
        representative: the limit is proved only by requests at a representative share of the
            traffic; a smaller share has emptier batches and queues.
        gross: the rule for gross faults, if there is one.
        by_labels: the hits are labelled answers, which are folded when their labels arrive.
    """

    hits: Callable[[Counts], Hits]
    words: str
    limit: Callable[[RolloutSpec], float | None]
    versus_live: bool = False
    representative: bool = False
    gross: GrossRule | None = None
    by_labels: bool = False

    def sentence(self, hits: Hits, spec: RolloutSpec) -> str:
        """Return "0.40 % of 753 requests failed"."""
        limits: dict[str, Any] = {
            "p50": spec.max_p50_ms or 0.0,
            "p99": spec.max_p99_ms or 0.0,
            "ttft": spec.max_ttft_ms or 0.0,
            "tpot": spec.max_tpot_ms or 0.0,
        }
        share = 100.0 * hits[0] / hits[1] if hits[1] else 0.0
        return f"{share:.2f} % of {hits[1]:.0f} requests {self.words.format(**limits)}"


def _max_error_rate(spec: RolloutSpec) -> float:
    return spec.max_error_rate


# Half of the requests, less what chance takes from the first 30 of them.
_GROSS_ERRORS = GrossRule(share=1.0 / 3.0, seconds=1.5, hits=5)
# Longer than the bursts of 5 s that a healthy service may have.
_GROSS_LATENCY = GrossRule(share=0.8, seconds=8.0, hits=8)

GATES: dict[Gate, GateRule] = {
    Gate.ERRORS_VS_LIMIT: GateRule(
        lambda counts: (counts.errors, counts.requests),
        "failed",
        _max_error_rate,
        gross=_GROSS_ERRORS,
    ),
    Gate.LATENCY_VS_LIMIT: GateRule(
        lambda counts: (counts.slow, counts.timed),
        "took longer than {p99:g} ms",
        lambda spec: None if spec.max_p99_ms is None else SLOW_SHARE,
        representative=True,
        gross=_GROSS_LATENCY,
    ),
    Gate.MEDIAN_VS_LIMIT: GateRule(
        lambda counts: (counts.late, counts.timed),
        "took longer than {p50:g} ms",
        lambda spec: None if spec.max_p50_ms is None else LATE_SHARE,
        representative=True,
    ),
    Gate.ERRORS_VS_LIVE: GateRule(
        lambda counts: (counts.errors + counts.abandoned, counts.total),
        "failed or were given up by their clients",
        _max_error_rate,
        versus_live=True,
        gross=_GROSS_ERRORS,
    ),
    Gate.CLIENT_ERRORS_VS_LIVE: GateRule(
        lambda counts: (counts.client_errors, counts.requests),
        "were rejected as the client's error",
        _max_error_rate,
        versus_live=True,
        gross=GrossRule(share=0.5, seconds=1.5, hits=5),
    ),
    Gate.LATENCY_VS_LIVE: GateRule(
        lambda counts: (counts.tail, counts.timed),
        "were slower than the live revision's p99 and its margin",
        lambda _spec: SLOW_SHARE,
        versus_live=True,
        gross=_GROSS_LATENCY,
    ),
    Gate.TTFT_VS_LIMIT: GateRule(
        lambda counts: (counts.late_first, counts.begun),
        "had their first token after more than {ttft:g} ms",
        lambda spec: None if spec.max_ttft_ms is None else SLOW_ANSWER_SHARE,
        representative=True,
        gross=_GROSS_LATENCY,
    ),
    Gate.TPOT_VS_LIMIT: GateRule(
        lambda counts: (counts.slow_tokens, counts.continued),
        "took longer than {tpot:g} ms for each token",
        lambda spec: None if spec.max_tpot_ms is None else SLOW_ANSWER_SHARE,
        representative=True,
        gross=_GROSS_LATENCY,
    ),
    Gate.ACCURACY_VS_LIMIT: GateRule(
        lambda _counts: (0, 0),
        "with a label were answered wrong",
        lambda spec: spec.max_wrong,
        by_labels=True,
    ),
}
