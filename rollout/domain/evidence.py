"""Gates as data, and all ticks of a rollout folded into evidence for them. Pure.

`GATES` is the only list of gates on traffic counters: a new gate is one entry. Harm is tested tick
by tick and proof request by request (see `e_values`). Folding the recorded ticks again gives
exactly the same evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rollout.domain import agreement, e_values
from rollout.domain.agreement import ShadowEvidence
from rollout.domain.counts import Counts, Window
from rollout.domain.e_values import LimitEvidence, Logs
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import RolloutSpec
from rollout.domain.verdict import Gate, Hits, share

# p99 <= L is the same statement as P(latency > L) <= 1 %, p50 <= L as P(latency > L) <= 50 %.
SLOW_SHARE = 0.01
LATE_SHARE = 0.5
_NOISE = 2.0  # standard errors
_MAX_LIMIT = 0.99  # a limit of 1 cannot be exceeded, so it cannot be bet against


class Reference(StrEnum):
    """What a gate compares the candidate's share with."""

    LIMIT = "limit"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class GateRule:
    """One gate on the candidate's counters.

    Attributes:
        hits: bad requests of all requests that the gate counts.
        reference: an absolute limit, or the live revision.
        limit: the largest share (LIMIT), or how much more than live's share is tolerated (LIVE);
            None if the spec turns the gate off.
        words: what the bad requests did, to follow "0.40 % of 753 requests".
        any_weight_proves: a small share of the traffic can prove it. Not so for latency, because
            batches and queues are emptier there (`RolloutSpec.fair`).
        history: without live traffic in a tick (in the bake), compare with live's earlier ticks.
        seed: distinguishes the random draws of the gates that compare with live.
    """

    hits: Callable[[Counts], tuple[int, int]]
    reference: Reference
    limit: Callable[[RolloutSpec], float | None]
    words: Callable[[RolloutSpec], str]
    any_weight_proves: bool = True
    history: bool = True
    seed: int = 0


GATES: Mapping[Gate, GateRule] = {
    Gate.ERRORS_VS_LIMIT: GateRule(
        hits=lambda counts: (counts.errors, counts.requests),
        reference=Reference.LIMIT,
        limit=lambda spec: spec.max_error_rate,
        words=lambda _spec: "failed",
    ),
    Gate.LATENCY_VS_LIMIT: GateRule(
        hits=lambda counts: (counts.slow, counts.timed),
        reference=Reference.LIMIT,
        limit=lambda spec: None if spec.max_p99_ms is None else SLOW_SHARE,
        words=lambda spec: f"took longer than the p99 limit of {spec.max_p99_ms:g} ms",
        any_weight_proves=False,
    ),
    Gate.MEDIAN_VS_LIMIT: GateRule(
        hits=lambda counts: (counts.late, counts.timed),
        reference=Reference.LIMIT,
        limit=lambda spec: None if spec.max_p50_ms is None else LATE_SHARE,
        words=lambda spec: f"took longer than the median limit of {spec.max_p50_ms:g} ms",
        any_weight_proves=False,
    ),
    Gate.ERRORS_VS_LIVE: GateRule(
        # Client timeouts alone affect both revisions equally.
        hits=lambda counts: (counts.errors + counts.abandoned, counts.total),
        reference=Reference.LIVE,
        limit=lambda spec: spec.margin * spec.max_error_rate,
        words=lambda _spec: "failed or were abandoned by their clients",
    ),
    Gate.CLIENT_ERRORS_VS_LIVE: GateRule(
        hits=lambda counts: (counts.client_errors, counts.requests),
        reference=Reference.LIVE,
        limit=lambda spec: spec.margin * spec.max_error_rate,
        words=lambda _spec: "were rejected as client errors",
        seed=2,
    ),
    Gate.LATENCY_VS_LIVE: GateRule(
        hits=lambda counts: (counts.tail, counts.timed),
        reference=Reference.LIVE,
        limit=lambda _spec: 0.0,
        words=lambda spec: f"exceeded the live revision's p99 by more than {spec.margin:.0%}",
        history=False,
        seed=1,
    ),
}


def active_gates(spec: RolloutSpec, reference: Reference) -> Iterator[tuple[Gate, GateRule, float]]:
    """Yield the gates with this reference that `spec` has, with their limits."""
    for gate, rule in GATES.items():
        limit = rule.limit(spec)
        if rule.reference is reference and limit is not None:
            yield gate, rule, limit


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """All ticks so far; `shadow` is the evidence from pairs of answers."""

    seed: int = 0
    ticks: int = 0
    candidate: Counts = field(default_factory=Counts)
    live: Counts = field(default_factory=Counts)
    limits: Mapping[Gate, LimitEvidence] = field(default_factory=dict)
    against_live: Mapping[Gate, Logs] = field(default_factory=dict)
    shadow: ShadowEvidence = field(default_factory=ShadowEvidence)

    def on_limit(self, gate: Gate) -> LimitEvidence:
        """Return the evidence on an absolute limit."""
        return self.limits.get(gate, LimitEvidence())

    def log_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """Return the logarithm of each rollback gate's e-value."""
        none = e_values.start(len(e_values.SHARE_STAKES))
        logs = {gate: self.on_limit(gate).above for gate, *_ in active_gates(spec, Reference.LIMIT)}
        for gate, *_ in active_gates(spec, Reference.LIVE):
            logs[gate] = self.against_live.get(gate, none)
        if spec.shadows and spec.max_disagreement is not None:
            logs[Gate.DISAGREEMENT] = self.shadow.limit.above
        return {gate: e_values.log_mean(each) for gate, each in logs.items()}

    def proof_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """Return the logarithm of the e-value that shows each limit to be kept."""
        logs = {gate: self.on_limit(gate).below for gate, *_ in active_gates(spec, Reference.LIMIT)}
        if spec.shadows and spec.max_disagreement is not None:
            logs[Gate.DISAGREEMENT] = self.shadow.limit.below
        return {gate: e_values.log_mean(each) for gate, each in logs.items()}


def fold(evidence: GateEvidence, window: Window, spec: RolloutSpec) -> GateEvidence:
    """Add one tick. A tick without candidate requests changes nothing."""
    ours = window.candidate
    if ours.total == 0:
        return evidence
    limits = {
        gate: evidence.on_limit(gate).fold(
            rule.hits(ours), limit, proves=window.fair or rule.any_weight_proves
        )
        for gate, rule, limit in active_gates(spec, Reference.LIMIT)
    }
    against_live = {
        gate: _against_live(evidence, gate, window, spec)
        for gate, *_ in active_gates(spec, Reference.LIVE)
    }
    return replace(
        evidence,
        ticks=evidence.ticks + 1,
        candidate=evidence.candidate.plus(ours),
        live=evidence.live.plus(window.live),
        limits=limits,
        against_live=against_live,
    )


def fold_shadow(evidence: GateEvidence, shadow: ShadowWindow, spec: RolloutSpec) -> GateEvidence:
    """Add the pairs of answers of one tick."""
    return replace(evidence, shadow=agreement.fold(evidence.shadow, shadow, spec))


def baseline_limit(theirs: Hits, n: int, spec: RolloutSpec) -> float:
    """Return the share up to which `n` requests are consistent with live's: its own share, the
    permitted error rate, and two standard errors.
    """
    rate = share(theirs)
    noise = _NOISE * math.sqrt(rate * (1.0 - rate) / n) if n else 0.0
    return min(rate + spec.max_error_rate + noise, _MAX_LIMIT)


def _against_live(evidence: GateEvidence, gate: Gate, window: Window, spec: RolloutSpec) -> Logs:
    """Fold one tick's comparison: with live in the same tick, else with live's earlier ticks."""
    rule = GATES[gate]
    start = e_values.start(len(e_values.SHARE_STAKES))
    logs = evidence.against_live.get(gate, start)
    ours, theirs, before = map(rule.hits, (window.candidate, window.live, evidence.live))
    if theirs[1] or not rule.history:
        seed = (evidence.seed, evidence.ticks, rule.seed)
        return e_values.sign_step(logs, e_values.thinned_sign(ours, theirs, seed))
    if not before[1]:
        return logs
    return e_values.share_step(logs, *ours, baseline_limit(before, before[1], spec))
