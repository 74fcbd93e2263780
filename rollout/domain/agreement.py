"""Judging the pairs of answers: no NaN, no more disagreement than allowed, no drift. Pure.

One request is one trial, with the share of its rows that disagree, because the rows of a
request come from one caller and are wrong together. Drift only holds: a distribution that
moved says that somebody should observation, not that the candidate is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bundle.errors import ErrorCode, MlctlError
from rollout.domain import e_values
from rollout.domain.drift import rows_needed
from rollout.domain.e_values import LimitEvidence
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import Revision, RolloutSpec
from rollout.domain.verdict import (
    MIN_BAD_TICKS,
    NOT_ENOUGH_DATA,
    Action,
    Gate,
    Hits,
    HoldReason,
    Verdict,
    breaks,
    percent,
    share,
)

# How much more two variants of one model may differ than what was proved of each explains.
_SLACK = 0.01


@dataclass(frozen=True, slots=True)
class ShadowEvidence:
    """All pairs of answers so far: their sums, the last drift, the evidence on disagreement."""

    total: ShadowWindow = field(default_factory=ShadowWindow)
    limit: LimitEvidence = field(default_factory=LimitEvidence)

    @property
    def hits(self) -> Hits:
        """Disagreeing requests of all that were compared."""
        return self.total.disagreed, self.total.requests


def by_default(spec: RolloutSpec, live: Revision, candidate: Revision) -> RolloutSpec:
    """The spec with a limit on disagreement where one follows from what is known.

    Variants of one source model answer as it does but for what optimize found, so they differ
    from each other by no more than both together; a model trained anew may differ by anything.
    """
    if spec.max_disagreement is not None or live.source != candidate.source:
        return spec
    if live.agreement is None or candidate.agreement is None:
        return spec
    explained = (1.0 - live.agreement) + (1.0 - candidate.agreement)
    return replace(spec, max_disagreement=min(round(explained + _SLACK, 9), 0.99))


def require_copies(spec: RolloutSpec, *, can_copy: bool) -> None:
    """INVALID_INPUT if agreement is asked for where nothing could ever show it."""
    if spec.max_disagreement is None or (can_copy and spec.shadows):
        return
    why = "no request is copied" if can_copy else "requests are not copied in a cluster"
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"a least agreement cannot be proved: {why}",
        "Leave --min-agreement out, or copy some requests: --shadow-percent.",
    )


def fold(evidence: ShadowEvidence, window: ShadowWindow, spec: RolloutSpec) -> ShadowEvidence:
    """Add the pairs of one tick."""
    evidence = replace(evidence, total=_plus(evidence.total, window))
    limit = spec.max_disagreement
    if limit is None or not window.requests:
        return evidence
    hits = (window.disagreed, window.requests)
    return replace(evidence, limit=evidence.limit.fold(hits, limit))


def broken(evidence: ShadowEvidence) -> Verdict | None:
    """ROLLBACK at the first NaN or infinity where live answered a number."""
    total = evidence.total
    if not total.non_finite:
        return None
    why = (
        f"{total.non_finite} of {total.rows} compared rows hold NaN or infinity where the live "
        "revision answers numbers"
    )
    return Verdict(Action.ROLLBACK, Gate.NON_FINITE, why, total.non_finite, 0.0, total.requests)


def disagrees(evidence: ShadowEvidence, spec: RolloutSpec) -> Verdict | None:
    """ROLLBACK for what the e-process has shown, if it was seen in several ticks."""
    if evidence.limit.bad_ticks < MIN_BAD_TICKS or spec.max_disagreement is None:
        return None
    return _verdict(Action.ROLLBACK, evidence, spec.max_disagreement, "")


def doubtful(evidence: ShadowEvidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD while disagreement or drift lies beyond its limit, proved or not; else None."""
    limit, total = spec.max_disagreement, evidence.total
    if limit is not None and breaks(evidence.hits, limit):
        return _verdict(Action.HOLD, evidence, limit, f": {NOT_ENOUGH_DATA}")
    if total.psi is not None and total.psi > spec.max_psi:
        why = (
            f"the outputs drift from the live revision's: PSI {total.psi:.3f} over "
            f"{total.psi_rows} rows (limit {spec.max_psi:g})"
        )
        return Verdict(Action.HOLD, Gate.DRIFT, why, total.psi, spec.max_psi, total.psi_rows)
    return None


def unproved(evidence: ShadowEvidence, spec: RolloutSpec, threshold: float) -> Verdict | None:
    """HOLD until enough pairs were seen and, with a limit, agreement is shown; else None.

    `threshold` is the logarithm that the proof has to reach.
    """
    total, needed = evidence.total, spec.shadow_requests
    if total.requests < needed:
        why = f"{total.requests} requests compared on both revisions ({needed} needed)"
        return Verdict(Action.HOLD, HoldReason.DATA, why, total.requests, needed, total.requests)
    if total.psi is None:
        needed = rows_needed(spec.max_psi)
        why = f"{total.rows} rows compared ({needed} needed to judge drift)"
        return Verdict(Action.HOLD, HoldReason.DATA, why, total.rows, needed, total.requests)
    limit = spec.max_disagreement
    if limit is None or e_values.log_mean(evidence.limit.below) >= threshold:
        return None
    why = (
        f"{percent(share(evidence.hits))} of {total.requests} compared requests disagree: more "
        f"requests must show that the share is below {percent(limit)}"
    )
    return Verdict(Action.HOLD, HoldReason.PROOF, why, share(evidence.hits), limit, total.requests)


def _verdict(action: Action, evidence: ShadowEvidence, limit: float, end: str) -> Verdict:
    total = evidence.total
    why = (
        f"{percent(share(evidence.hits))} of {total.requests} compared requests disagree with the "
        f"live revision, {total.differed} of {total.rows} rows (limit {percent(limit)}){end}"
    )
    return Verdict(action, Gate.DISAGREEMENT, why, share(evidence.hits), limit, total.requests)


def _plus(total: ShadowWindow, window: ShadowWindow) -> ShadowWindow:
    return ShadowWindow(
        requests=total.requests + window.requests,
        disagreed=total.disagreed + window.disagreed,
        rows=total.rows + window.rows,
        differed=total.differed + window.differed,
        non_finite=total.non_finite + window.non_finite,
        distance=max(total.distance, window.distance),
        lost=total.lost + window.lost,
        psi=window.psi,
        psi_rows=window.psi_rows,
    )
