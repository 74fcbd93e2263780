"""All ticks of a rollout folded into evidence: sums and e-processes. Pure.

Harm is bet on tick by tick, proof request by request: see `eprocess`. A fold over the recorded
ticks rebuilds it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rollout.domain import agreement
from rollout.domain import e_values as eprocess
from rollout.domain.agreement import ShadowEvidence
from rollout.domain.counts import Counts, Window
from rollout.domain.e_values import Logs
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import RolloutSpec
from rollout.domain.verdict import Gate, Hits, breaks, share

# p99 <= L is the same statement as P(latency > L) <= 1 %, p50 <= L as P(latency > L) <= 50 %.
SLOW_SHARE = 0.01
LATE_SHARE = 0.5
_NOISE = 2.0  # standard errors
_HIGHEST_LIMIT = 0.99  # a limit of 1 could not be exceeded, nor bet on


def _above() -> Logs:
    return eprocess.start(len(eprocess.SHARE_STAKES))


def _below() -> Logs:
    return eprocess.start(4)


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """All ticks so far. `bad_*_ticks` are those beyond a limit, `shadow` the pairs of answers."""

    seed: int = 0
    ticks: int = 0
    candidate: Counts = field(default_factory=Counts)
    live: Counts = field(default_factory=Counts)
    errors_vs_limit: Logs = field(default_factory=_above)
    errors_vs_live: Logs = field(default_factory=_above)
    client_errors_vs_live: Logs = field(default_factory=_above)
    latency_vs_limit: Logs = field(default_factory=_above)
    median_vs_limit: Logs = field(default_factory=_above)
    latency_vs_live: Logs = field(default_factory=_above)
    errors_proof: Logs = field(default_factory=_below)
    latency_proof: Logs = field(default_factory=_below)
    median_proof: Logs = field(default_factory=_below)
    bad_error_ticks: int = 0
    bad_latency_ticks: int = 0
    bad_median_ticks: int = 0
    shadow: ShadowEvidence = field(default_factory=ShadowEvidence)

    def log_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """The logarithm of each rollback gate's e-value. Which gates there are, the spec says."""
        logs = {
            Gate.ERRORS_VS_LIMIT: self.errors_vs_limit,
            Gate.ERRORS_VS_LIVE: self.errors_vs_live,
            Gate.CLIENT_ERRORS_VS_LIVE: self.client_errors_vs_live,
            Gate.LATENCY_VS_LIVE: self.latency_vs_live,
        }
        if spec.max_p99_ms is not None:
            logs[Gate.LATENCY_VS_LIMIT] = self.latency_vs_limit
        if spec.max_p50_ms is not None:
            logs[Gate.MEDIAN_VS_LIMIT] = self.median_vs_limit
        if spec.shadows and spec.max_disagreement is not None:
            logs[Gate.DISAGREEMENT] = self.shadow.disagreement
        return {gate: eprocess.log_mean(each) for gate, each in logs.items()}

    def proof_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """The logarithm of the e-value with which each limit is shown to be kept."""
        logs = {Gate.ERRORS_VS_LIMIT: self.errors_proof}
        if spec.max_p99_ms is not None:
            logs[Gate.LATENCY_VS_LIMIT] = self.latency_proof
        if spec.max_p50_ms is not None:
            logs[Gate.MEDIAN_VS_LIMIT] = self.median_proof
        if spec.shadows and spec.max_disagreement is not None:
            logs[Gate.DISAGREEMENT] = self.shadow.agreement_proof
        return {gate: eprocess.log_mean(each) for gate, each in logs.items()}


def fold(evidence: GateEvidence, window: Window, spec: RolloutSpec) -> GateEvidence:
    """Add one tick. A tick without candidate requests changes nothing."""
    ours = window.candidate
    if ours.seen == 0:
        return evidence
    return replace(
        _limits(evidence, window, spec),
        ticks=evidence.ticks + 1,
        candidate=evidence.candidate.plus(ours),
        live=evidence.live.plus(window.live),
        errors_vs_live=_against_live(evidence.errors_vs_live, failed, evidence, window, spec),
        client_errors_vs_live=_against_live(
            evidence.client_errors_vs_live, blamed, evidence, window, spec
        ),
        latency_vs_live=eprocess.sign_step(evidence.latency_vs_live, _tail_sign(evidence, window)),
    )


def fold_shadow(evidence: GateEvidence, shadow: ShadowWindow, spec: RolloutSpec) -> GateEvidence:
    """Add one look at pairs of answers."""
    return replace(evidence, shadow=agreement.fold(evidence.shadow, shadow, spec))


def failed(counts: Counts) -> tuple[int, int]:
    """Requests without a good end, of all. Impatient clients alone leave both slots alike."""
    return counts.errors + counts.abandoned, counts.seen


def blamed(counts: Counts) -> tuple[int, int]:
    """Answers that blame the caller, of all answers: live gets the same callers."""
    return counts.client_errors, counts.requests


def usual(theirs: Hits, n: int, spec: RolloutSpec) -> float:
    """The share up to which `n` requests are still like live's: its own, some slack, and noise."""
    rate = share(theirs)
    noise = _NOISE * math.sqrt(rate * (1.0 - rate) / n) if n else 0.0
    return min(rate + spec.max_error_rate + noise, _HIGHEST_LIMIT)


def _limits(evidence: GateEvidence, window: Window, spec: RolloutSpec) -> GateEvidence:
    """Fold one tick's comparison with the absolute limits.

    Only a tick at a fair share of the traffic proves a latency; any tick can show harm.
    """
    ours, limit = window.candidate, spec.max_error_rate
    errors, slow = (ours.errors, ours.requests), (ours.slow, ours.timed)
    late = (ours.late, ours.timed)
    evidence = replace(
        evidence,
        errors_vs_limit=eprocess.share_step(evidence.errors_vs_limit, *errors, limit),
        errors_proof=eprocess.bound_step(evidence.errors_proof, *errors, limit),
        latency_vs_limit=eprocess.share_step(evidence.latency_vs_limit, *slow, SLOW_SHARE),
        median_vs_limit=eprocess.share_step(evidence.median_vs_limit, *late, LATE_SHARE),
        bad_error_ticks=evidence.bad_error_ticks + breaks(errors, limit),
        bad_latency_ticks=evidence.bad_latency_ticks + breaks(slow, SLOW_SHARE),
        bad_median_ticks=evidence.bad_median_ticks + breaks(late, LATE_SHARE),
    )
    if not window.fair:
        return evidence
    return replace(
        evidence,
        latency_proof=eprocess.bound_step(evidence.latency_proof, *slow, SLOW_SHARE),
        median_proof=eprocess.bound_step(evidence.median_proof, *late, LATE_SHARE),
    )


def _tail_sign(evidence: GateEvidence, window: Window) -> int:
    ours, theirs = window.candidate, window.live
    seed = (evidence.seed, evidence.ticks, 1)
    return eprocess.thinned_sign((ours.tail, ours.timed), (theirs.tail, theirs.timed), seed)


def _against_live(
    logs: Logs,
    hits_of: Callable[[Counts], tuple[int, int]],
    evidence: GateEvidence,
    window: Window,
    spec: RolloutSpec,
) -> Logs:
    """Fold one tick's comparison with live: with the same tick, or else with what live did before.

    In the bake live has no requests.
    """
    ours, theirs, before = map(hits_of, (window.candidate, window.live, evidence.live))
    if theirs[1]:
        seed = (evidence.seed, evidence.ticks, 0 if hits_of is failed else 2)
        return eprocess.sign_step(logs, eprocess.thinned_sign(ours, theirs, seed))
    if not before[1]:
        return logs
    return eprocess.share_step(logs, *ours, usual(before, before[1], spec))
