"""The verdict on a candidate: pure functions of the evidence.

Rollback needs the mean of all e-values at 1/alpha, so a good candidate is rolled back with
probability at most alpha over the whole rollout, however often it is evaluated (ticks are taken as
exchangeable while the candidate is good). The final step needs evidence that every limit is kept.
Missing data never passes a gate.
"""

from __future__ import annotations

import math

from rollout.domain import agreement, e_values
from rollout.domain.counts import Counts
from rollout.domain.evidence import (
    GATES,
    GateEvidence,
    GateRule,
    Reference,
    active_gates,
    baseline_limit,
    fold,
    fold_shadow,
)
from rollout.domain.spec import RolloutSpec
from rollout.domain.verdict import (
    MIN_BAD_TICKS,
    NOT_ENOUGH_DATA,
    Action,
    Gate,
    Hits,
    HoldReason,
    Verdict,
    breaks,
    counted,
    percent,
    share,
)

__all__ = [
    "MIN_BAD_TICKS",
    "Action",
    "Gate",
    "GateEvidence",
    "HoldReason",
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

MIN_TICKS = 3
MAX_UNHEALTHY_TICKS = 3


def harm(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return ROLLBACK by the strongest gate that is beyond its threshold and margin, or None."""
    if (verdict := agreement.broken(evidence.shadow)) is not None:
        return verdict
    threshold = math.log(1.0 / spec.alpha)
    values = evidence.log_values(spec)
    if e_values.log_mean(tuple(values.values())) < threshold:
        return None
    for gate, value in sorted(values.items(), key=lambda item: -item[1]):
        verdict = _rollback(gate, evidence, spec)
        if value >= threshold and verdict is not None:
            return verdict
    return None


def unproved(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return HOLD for the first limit that is not yet shown to be kept, or None when all are."""
    threshold = math.log(1.0 / spec.alpha)
    for gate, rule, limit in active_gates(spec, Reference.LIMIT):
        if e_values.log_mean(evidence.on_limit(gate).below) < threshold:
            hits = rule.hits(evidence.candidate)
            seen = counted(hits, rule.words(spec))
            why = f"{seen}: more requests must show that the share is below {percent(limit)}"
            return Verdict(Action.HOLD, HoldReason.PROOF, why, share(hits), limit, hits[1])
    return None


def judge_shadow(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return HOLD until the answers to copied requests are shown to agree with live's, or None.

    The copies' own errors and latencies are part of the evidence.
    """
    return (
        doubtful(evidence, spec)
        or agreement.doubtful(evidence.shadow, spec)
        or agreement.unproved(evidence.shadow, spec, math.log(1.0 / spec.alpha))
    )


def doubtful(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return HOLD while a share is beyond its limit without proof of harm; else None.

    A candidate that ticks bad gets no more traffic until more requests have decided. Comparisons
    with live cover the whole rollout and so also the bake, in which live has no requests.
    """
    for gate, rule, limit in active_gates(spec, Reference.LIMIT):
        hits = rule.hits(evidence.candidate)
        if breaks(hits, limit):
            return _beyond(Action.HOLD, (gate, rule), hits, limit, spec)
    for gate, rule, _ in active_gates(spec, Reference.LIVE):
        ours, theirs = rule.hits(evidence.candidate), rule.hits(evidence.live)
        limit = baseline_limit(theirs, ours[1], spec)
        if rule.history and theirs[1] and breaks(ours, limit):
            return _beyond(Action.HOLD, (gate, rule), ours, limit, spec, live=theirs)
    return None


def tick_breaks_limit(ours: Counts, spec: RolloutSpec) -> bool:
    """Return whether one tick of the candidate alone exceeds an absolute limit."""
    limits = active_gates(spec, Reference.LIMIT)
    return any(breaks(rule.hits(ours), limit) for _, rule, limit in limits)


def _rollback(gate: Gate, evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return ROLLBACK if the effect is also large enough: several bad ticks, or beyond live's
    share by more than the margin.
    """
    if gate is Gate.DISAGREEMENT:
        return agreement.disagrees(evidence.shadow, spec)
    rule = GATES[gate]
    limit = rule.limit(spec)
    assert limit is not None  # only active gates have an e-value
    ours, theirs = rule.hits(evidence.candidate), rule.hits(evidence.live)
    if rule.reference is Reference.LIMIT:
        if evidence.on_limit(gate).bad_ticks < MIN_BAD_TICKS:
            return None
        return _beyond(Action.ROLLBACK, (gate, rule), ours, limit, spec)
    limit += share(theirs)
    if share(ours) <= limit:
        return None
    return _beyond(Action.ROLLBACK, (gate, rule), ours, limit, spec, live=theirs)


def _beyond(
    action: Action,
    entry: tuple[Gate, GateRule],
    hits: Hits,
    limit: float,
    spec: RolloutSpec,
    live: Hits | None = None,
) -> Verdict:
    """Return the verdict on a share beyond `limit`: "0.40 % of 753 requests failed (limit 1 %)"."""
    gate, rule = entry
    reference = f"limit {percent(limit)}"
    if live is not None:
        reference = f"live revision {percent(share(live))} of {live[1]}, {reference}"
    why = f"{counted(hits, rule.words(spec))} ({reference})"
    if action is Action.HOLD:
        why += f": {NOT_ENOUGH_DATA}"
    return Verdict(action, gate, why, share(hits), limit, hits[1])
