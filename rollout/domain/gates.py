"""The verdict on a candidate: pure functions of counters folded into evidence.

Rollback needs the mean of all e-values at 1/alpha, so a good candidate is rolled back with
probability at most alpha over the whole rollout, however often it is looked at (ticks are
taken as exchangeable while the candidate is good). The final step needs evidence the other
way. No data is never a pass. See docs of `eprocess` for the tests themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rollout.domain import agreement
from rollout.domain import e_values as eprocess
from rollout.domain.counts import Counts
from rollout.domain.evidence import (
    LATE_SHARE,
    SLOW_SHARE,
    GateEvidence,
    blamed,
    failed,
    fold,
    fold_shadow,
    usual,
)
from rollout.domain.spec import RolloutSpec
from rollout.domain.verdict import Action, Gate, Hits, Verdict, breaks, share

__all__ = [
    "SLOW_SHARE",
    "Action",
    "Gate",
    "GateEvidence",
    "Verdict",
    "breaks",
    "doubtful",
    "fold",
    "fold_shadow",
    "harm",
    "judge_shadow",
    "tick_breaks_limit",
    "unproved",
]

MIN_BAD_TICKS = 3
MIN_TICKS = 3
UNHEALTHY_LOOKS = 3


def harm(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """ROLLBACK with the strongest gate that may fire, or None."""
    if (verdict := agreement.broken(evidence.shadow)) is not None:
        return verdict
    threshold = math.log(1.0 / spec.alpha)
    values = evidence.log_values(spec)
    if eprocess.log_mean(tuple(values.values())) < threshold:
        return None
    for gate, value in sorted(values.items(), key=lambda item: -item[1]):
        verdict = _RULES[gate](evidence, spec)
        if value >= threshold and verdict is not None:
            return verdict
    return None


def unproved(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD with the gate whose limit is not yet shown to be kept, or None when all are."""
    threshold = math.log(1.0 / spec.alpha)
    for what, logs, hits, limit in _proofs(evidence, spec):
        if eprocess.log_mean(logs) < threshold:
            why = f"{hits[0]} {what} in {hits[1]} do not yet prove a share below {limit:g}"
            return Verdict(Action.HOLD, Gate.PROOF, why, share(hits), limit, hits[1])
    return None


def judge_shadow(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD until the answers to copied requests are shown to be as live's, or None when they are.

    The copies' own errors and latencies are in the evidence as well.
    """
    return (
        doubtful(evidence, spec)
        or agreement.doubtful(evidence.shadow, spec)
        or agreement.unproved(evidence.shadow, spec, math.log(1.0 / spec.alpha))
    )


def doubtful(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD while what was seen lies beyond a limit, though too little to prove harm; else None.

    A candidate that looks bad gets no more traffic before more requests have decided.
    """
    for gate, what, hits, limit in _shares(evidence, spec):
        if breaks(hits, limit):
            why = f"{hits[0]} of {hits[1]} requests {what}: too many to go on, too few to decide"
            return Verdict(Action.HOLD, gate, why, share(hits), limit, hits[1])
    return _worse_than_live(evidence, spec)


def tick_breaks_limit(ours: Counts, spec: RolloutSpec) -> bool:
    """Return whether one tick of the candidate alone exceeds an absolute limit."""
    return (
        breaks((ours.errors, ours.requests), spec.max_error_rate)
        or (spec.max_p99_ms is not None and breaks((ours.slow, ours.timed), SLOW_SHARE))
        or (spec.max_p50_ms is not None and breaks((ours.late, ours.timed), LATE_SHARE))
    )


def _proofs(
    evidence: GateEvidence, spec: RolloutSpec
) -> Iterator[tuple[str, eprocess.Logs, Hits, float]]:
    """What has to be proved: its words, its e-process, what was seen, and the limit."""
    ours = evidence.candidate
    errors = (ours.errors, ours.requests)
    yield "errors", evidence.errors_proof, errors, spec.max_error_rate
    if spec.max_p99_ms is not None:
        yield "slow requests", evidence.latency_proof, (ours.slow, ours.timed), SLOW_SHARE
    if spec.max_p50_ms is not None:
        what = "requests above the median's limit"
        yield what, evidence.median_proof, (ours.late, ours.timed), LATE_SHARE


def _shares(evidence: GateEvidence, spec: RolloutSpec) -> Iterator[tuple[Gate, str, Hits, float]]:
    """The shares that have an absolute limit: gate, words, what was seen, and the limit."""
    ours = evidence.candidate
    yield Gate.ERRORS_VS_LIMIT, "failed", (ours.errors, ours.requests), spec.max_error_rate
    for gate, limit_ms, hits, limit in (
        (Gate.LATENCY_VS_LIMIT, spec.max_p99_ms, ours.slow, SLOW_SHARE),
        (Gate.MEDIAN_VS_LIMIT, spec.max_p50_ms, ours.late, LATE_SHARE),
    ):
        if limit_ms is not None:
            yield gate, f"took longer than {limit_ms:g} ms", (hits, ours.timed), limit


def _worse_than_live(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD while more than noise lies between the candidate and live, over the whole rollout.

    It also covers the bake, in which live has no requests that a tick could be compared with.
    """
    pairs = [
        (Gate.ERRORS_VS_LIVE, failed(evidence.candidate), failed(evidence.live)),
        (Gate.CLIENT_ERRORS_VS_LIVE, blamed(evidence.candidate), blamed(evidence.live)),
    ]
    for gate, (hits, n), theirs in pairs:
        limit = usual(theirs, n, spec)
        if theirs[1] and breaks((hits, n), limit):
            why = (
                f"{hits} of {n} requests {_WHAT[gate]}, {theirs[0]} of {theirs[1]} on the live "
                "revision: too many to go on, too few to decide"
            )
            return Verdict(Action.HOLD, gate, why, share((hits, n)), limit, n)
    return None


def _beyond_limit(
    gate: Gate, bad_ticks: int, evidence: GateEvidence, spec: RolloutSpec
) -> Verdict | None:
    """ROLLBACK for an absolute limit, if it was passed in several ticks."""
    if bad_ticks < MIN_BAD_TICKS:
        return None
    what, hits, limit = next(
        (what, hits, limit) for each, what, hits, limit in _shares(evidence, spec) if each is gate
    )
    why = f"{hits[0]} of {hits[1]} requests {what}, at most {limit:g} may"
    return Verdict(Action.ROLLBACK, gate, why, share(hits), limit, hits[1])


def _errors_vs_limit(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    return _beyond_limit(Gate.ERRORS_VS_LIMIT, evidence.bad_error_ticks, evidence, spec)


def _latency_vs_limit(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    return _beyond_limit(Gate.LATENCY_VS_LIMIT, evidence.bad_latency_ticks, evidence, spec)


def _median_vs_limit(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    return _beyond_limit(Gate.MEDIAN_VS_LIMIT, evidence.bad_median_ticks, evidence, spec)


def _disagreement(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    return agreement.disagrees(evidence.shadow, spec)


def _errors_vs_live(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    ours, theirs = failed(evidence.candidate), failed(evidence.live)
    return _beyond_live(Gate.ERRORS_VS_LIVE, ours, theirs, spec)


def _client_errors_vs_live(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    ours, theirs = blamed(evidence.candidate), blamed(evidence.live)
    return _beyond_live(Gate.CLIENT_ERRORS_VS_LIVE, ours, theirs, spec)


def _beyond_live(gate: Gate, ours: Hits, theirs: Hits, spec: RolloutSpec) -> Verdict | None:
    rate, limit = share(ours), share(theirs) + spec.margin * spec.max_error_rate
    if rate <= limit:
        return None
    why = (
        f"{ours[0]} of {ours[1]} requests {_WHAT[gate]}, "
        f"{theirs[0]} of {theirs[1]} on the live revision"
    )
    return Verdict(Action.ROLLBACK, gate, why, rate, limit, ours[1])


def _latency_vs_live(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    ours, theirs = evidence.candidate, evidence.live
    rate, limit = share((ours.tail, ours.timed)), share((theirs.tail, theirs.timed))
    if rate <= limit:
        return None
    why = (
        f"{ours.tail} of {ours.timed} requests were slower than the live revision's p99 "
        f"by {spec.margin:.0%}, of its own {theirs.tail} of {theirs.timed} beyond that p99"
    )
    return Verdict(Action.ROLLBACK, Gate.LATENCY_VS_LIVE, why, rate, limit, ours.timed)


_WHAT = {
    Gate.ERRORS_VS_LIVE: "failed or were given up by their clients",
    Gate.CLIENT_ERRORS_VS_LIVE: "were refused as the caller's error",
}
_RULES = {
    Gate.ERRORS_VS_LIMIT: _errors_vs_limit,
    Gate.ERRORS_VS_LIVE: _errors_vs_live,
    Gate.CLIENT_ERRORS_VS_LIVE: _client_errors_vs_live,
    Gate.LATENCY_VS_LIMIT: _latency_vs_limit,
    Gate.MEDIAN_VS_LIMIT: _median_vs_limit,
    Gate.DISAGREEMENT: _disagreement,
    Gate.LATENCY_VS_LIVE: _latency_vs_live,
}
