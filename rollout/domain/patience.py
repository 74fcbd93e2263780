"""When a shadow that finds too few answers to compare is left without its verdict. Pure.

Nobody may notice that a server does not record, or that hardly anybody asks it. The steps that
follow judge the users' own requests, so such a shadow is given up after a while, and said so.
"""

from __future__ import annotations

from dataclasses import replace

from rollout.domain import agreement
from rollout.domain.agreement import ShadowEvidence
from rollout.domain.spec import RolloutSpec
from rollout.domain.verdict import Action, HoldReason, Verdict

# Servers write once a second what they record: by then some of so many copies would be there.
UNRECORDED_SECONDS = 20.0


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
    doubt = agreement.doubtful(evidence, spec)
    if doubt is not None:
        return replace(doubt, action=Action.ROLLBACK, why=f"{doubt.why}, but {why}")
    why = f"the shadow ends without a verdict: {why}"
    return Verdict(Action.ADVANCE, HoldReason.DATA, why, waited, limit, pairs)
