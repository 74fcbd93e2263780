"""Judging the pairs of answers: no NaN, no more disagreement than allowed, no drift. Pure.

One request is one trial, with the share of its rows that disagree, because the rows of a
request come from one caller and are wrong together. Drift only holds: a distribution that
moved is a reason to check, not a proof that the candidate is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import Revision, RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.statistics.bursts import NO_TRIALS, Trials
from mlctl.rollout.domain.statistics.drift import rows_needed
from mlctl.rollout.domain.statistics.verdict import (
    Action,
    Gate,
    Hits,
    HoldReason,
    Verdict,
    breaks,
    share,
)

MIN_BAD_BLOCKS = 3
# How much more two variants of one model may differ than what was proved of each explains.
_SLACK = 0.01
# Servers write their recordings once a second: by then some of so many copies would be there.
UNRECORDED_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ShadowWindow:
    """The pairs of answers that were found since the tick before.

    Attributes:
        requests: those with both answers. `disagreed` is the sum over them of the share
            of their rows that disagree, so that one large request is one trial.
        rows: compared, and how many of these `differed`.
        non_finite: rows with NaN or infinity from the candidate where live's answer was finite.
        lost: rows of the candidate whose live answer never came.
        psi: population stability index of the outputs, over all pairs so far; None with too
            few of them. `psi_rows` is on how many.
        seconds: length of the tick.
    """

    requests: int = 0
    disagreed: float = 0.0
    rows: int = 0
    differed: int = 0
    non_finite: int = 0
    lost: int = 0
    psi: float | None = None
    psi_rows: int = 0
    seconds: float = 0.5

    def plus(self, later: ShadowWindow) -> ShadowWindow:
        """Both together: the sums, and the later one's drift."""
        return ShadowWindow(
            requests=self.requests + later.requests,
            disagreed=self.disagreed + later.disagreed,
            rows=self.rows + later.rows,
            differed=self.differed + later.differed,
            non_finite=self.non_finite + later.non_finite,
            lost=self.lost + later.lost,
            psi=later.psi,
            psi_rows=later.psi_rows,
            seconds=self.seconds,
        )


@dataclass(frozen=True, slots=True)
class ShadowEvidence:
    """All pairs so far: their sums, the last drift, and the requests as trials over time."""

    total: ShadowWindow = field(default_factory=lambda: ShadowWindow(seconds=0.0))
    trials: Trials = NO_TRIALS

    @property
    def hits(self) -> Hits:
        """Disagreeing requests of all that were compared."""
        return self.total.disagreed, self.total.requests


def by_default(spec: RolloutSpec, live: Revision, candidate: Revision) -> RolloutSpec:
    """Return the spec with a limit on disagreement where one follows from the proofs.

    Variants of one source model answer as it does but for what optimize found, so they differ
    from each other by no more than both together; a retrained model may differ by anything.
    """
    if spec.max_disagreement is not None or live.source != candidate.source:
        return spec
    if live.agreement is None or candidate.agreement is None:
        return spec
    explained = (1.0 - live.agreement) + (1.0 - candidate.agreement)
    return replace(spec, max_disagreement=min(round(explained + _SLACK, 9), 0.99))


def require_copies(spec: RolloutSpec, *, can_copy: bool) -> None:
    """Raise INVALID_INPUT if a limit on disagreement can never be proved."""
    if spec.max_disagreement is None or (can_copy and spec.shadows):
        return
    why = "no request is copied" if can_copy else "requests are not copied in a cluster"
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"a minimum agreement cannot be proved: {why}",
        "Leave --min-agreement out, or copy some requests: --shadow-percent.",
    )


def fold(evidence: ShadowEvidence, window: ShadowWindow, spec: RolloutSpec) -> ShadowEvidence:
    """Add one tick's pairs."""
    total = evidence.total.plus(window)
    if not window.requests:
        return replace(evidence, total=total)
    trials = evidence.trials.add(
        window.disagreed,
        window.requests,
        window.seconds,
        burst=spec.burst_seconds,
        limit=1.0 if spec.max_disagreement is None else spec.max_disagreement,
    )
    return ShadowEvidence(total, trials)


def log_harm(evidence: ShadowEvidence, limit: float) -> float:
    """Return the logarithm of the e-value against "at most `limit` of the requests disagree"."""
    trials = evidence.trials
    logs = e_values.above((trials.hits, trials.n), limit)
    return e_values.log_mean(logs, trials.design_effect)


def log_proof(evidence: ShadowEvidence, limit: float) -> float:
    """Return the logarithm of the e-value against "at least `limit` of the requests disagree"."""
    trials = evidence.trials
    logs = e_values.below((trials.hits, trials.n), limit)
    return e_values.log_mean(logs, trials.design_effect)


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
    """Return ROLLBACK if more than the limit disagree, in several blocks of time; else None."""
    limit = spec.max_disagreement
    if limit is None or evidence.trials.bad_blocks < MIN_BAD_BLOCKS:
        return None
    if not breaks(evidence.hits, limit):
        return None
    return _verdict(Action.ROLLBACK, evidence, limit, "")


def doubtful(evidence: ShadowEvidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD while disagreement or drift lies beyond its limit, proved or not; else None."""
    limit, total = spec.max_disagreement, evidence.total
    if limit is not None and breaks(evidence.hits, limit):
        return _verdict(Action.HOLD, evidence, limit, "; more requests will decide")
    if total.psi is not None and total.psi > spec.max_psi:
        why = (
            f"the outputs drift from the live revision's: PSI {total.psi:.3f} over "
            f"{total.psi_rows:,} rows (limit {spec.max_psi:g}, --max-psi); requests unlike those "
            "of users cause this too"
        )
        return Verdict(Action.HOLD, Gate.DRIFT, why, total.psi, spec.max_psi, total.psi_rows)
    return None


def unproved(evidence: ShadowEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return HOLD until enough pairs were seen and, with a limit, agreement is shown; else None."""
    total, needed = evidence.total, spec.shadow_requests
    if total.requests < needed:
        why = f"{total.requests} requests were answered by both revisions, {needed} are needed"
        return Verdict(Action.HOLD, HoldReason.DATA, why, total.requests, needed, total.requests)
    if total.psi is None:
        needed = rows_needed(spec.max_psi)
        why = f"{total.rows} compared rows, drift needs {needed}"
        return Verdict(Action.HOLD, HoldReason.DATA, why, total.rows, needed, total.requests)
    limit = spec.max_disagreement
    if limit is None or log_proof(evidence, limit) >= math.log(1.0 / spec.alpha):
        return None
    why = (
        f"{total.disagreed:.4g} disagreements in {total.requests} requests do not yet prove a "
        f"share below {limit:g}"
    )
    return Verdict(Action.HOLD, HoldReason.PROOF, why, share(evidence.hits), limit, total.requests)


def _verdict(action: Action, evidence: ShadowEvidence, limit: float, end: str) -> Verdict:
    total, disagreed = evidence.total, share(evidence.hits)
    why = (
        f"{100.0 * disagreed:.2f} % of {total.requests} compared requests ({total.differed} of "
        f"{total.rows} rows) are not answered like the live revision's "
        f"(limit {100.0 * limit:.4g} %){end}"
    )
    return Verdict(action, Gate.DISAGREEMENT, why, disagreed, limit, total.requests)


def given_up(
    evidence: ShadowEvidence, spec: RolloutSpec, copies: int, waited: float
) -> Verdict | None:
    """Return the verdict where waiting longer than `waited` seconds, with `copies`, leads nowhere.

    ADVANCE without a comparison, or ROLLBACK if the few answers differ by more than the limit.
    None while more may come, and where the spec sets no end to it.
    """
    limit, pairs = spec.shadow_wait_seconds, evidence.total.requests
    if limit is None:
        return None
    if not pairs and copies >= spec.shadow_requests and waited >= UNRECORDED_SECONDS:
        why = f"the servers recorded none of {copies} copied requests"
    elif waited < limit:
        return None
    else:
        why = f"{copies} copied requests and {pairs} compared answers in {waited:.0f} s are too few"
    doubt = doubtful(evidence, spec)
    if doubt is not None:
        return replace(doubt, action=Action.ROLLBACK, why=f"{doubt.why}, but {why}")
    why = f"the shadow ends without a verdict: {why}"
    return Verdict(Action.ADVANCE, HoldReason.DATA, why, waited, limit, pairs)
