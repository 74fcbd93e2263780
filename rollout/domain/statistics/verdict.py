"""What the gates say: an action, the gate that it rests on, and the numbers behind it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Hits = tuple[float, int]  # (bad, all) requests; a request may be bad in part


class Action(StrEnum):
    """The decision of a verdict."""

    ADVANCE = "advance"
    HOLD = "hold"
    ROLLBACK = "rollback"
    INCONCLUSIVE = "inconclusive"


class Gate(StrEnum):
    """What a candidate is judged by; a broken one rolls back or holds the rollout."""

    ERRORS_VS_LIMIT = "errors_vs_limit"
    ERRORS_VS_LIVE = "errors_vs_live"
    CLIENT_ERRORS_VS_LIVE = "client_errors_vs_live"
    LATENCY_VS_LIMIT = "latency_vs_limit"
    MEDIAN_VS_LIMIT = "median_vs_limit"
    LATENCY_VS_LIVE = "latency_vs_live"
    TTFT_VS_LIMIT = "ttft_vs_limit"
    TPOT_VS_LIMIT = "tpot_vs_limit"
    ACCURACY_VS_LIMIT = "accuracy_vs_limit"
    DISAGREEMENT = "disagreement"
    NON_FINITE = "non_finite"
    DRIFT = "drift"
    READY = "ready"
    HEALTH = "health"


class HoldReason(StrEnum):
    """What a verdict rests on that says nothing against the candidate."""

    DATA = "data"
    STEP_TIME = "step_time"
    PROOF = "proof"
    DEADLINE = "deadline"
    OPERATOR = "operator"
    CONFIG = "config"
    UNWATCHED = "unwatched"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision: `value` was measured against `limit` on `n` requests, and `why` in words."""

    action: Action
    gate: Gate | HoldReason
    why: str
    value: float | None = None
    limit: float | None = None
    n: int = 0


def first_line(why: str) -> str:
    """Return a verdict's reason without the log that may follow it."""
    first, _, log = why.partition("\n")
    return first.removesuffix("; its log ends:") if log else first


def breaks(hits: Hits, limit: float) -> bool:
    """Whether (hits, n) lies beyond `limit`."""
    return hits[0] > limit * hits[1]


def share(hits: Hits) -> float:
    """Return the share of bad requests; 0 of none."""
    return hits[0] / hits[1] if hits[1] else 0.0
