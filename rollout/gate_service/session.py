"""One rollout driven by another tool: its evidence and the verdict so far. Pure.

The evidence is kept over all steps, and that of the current weight besides: a candidate that
fails under more load is not excused by what it did under less. A failure is final.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine.evidence import GateEvidence, fold, next_step
from mlctl.rollout.domain.machine.state_machine import TickObservation
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action, Gate, HoldReason, Verdict

# The share that still counts as equal where only the counts show it.
_NEARLY_EQUAL = 45


class Result(StrEnum):
    """The answer to the tool that drives the rollout."""

    SUCCESS = "success"
    FAILURE = "failure"
    INCONCLUSIVE = "inconclusive"


_RESULTS = {
    Action.ADVANCE: Result.SUCCESS,
    Action.HOLD: Result.INCONCLUSIVE,
    Action.ROLLBACK: Result.FAILURE,
    Action.INCONCLUSIVE: Result.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class GateSession:
    """The evidence on one candidate. `step` is the weight that was given last, and the requests
    and ticks since it was first given; `failed` is the verdict that ended it.
    """

    evidence: GateEvidence = field(default_factory=GateEvidence)
    step: int | None = None
    step_requests: int = 0
    step_ticks: int = 0
    unhealthy_ticks: int = 0
    failed: Verdict | None = None


def result_of(verdict: Verdict) -> Result:
    """The word for a verdict."""
    return _RESULTS[verdict.action]


def absorb(
    session: GateSession, observation: TickObservation, spec: RolloutSpec, weight: int | None
) -> GateSession:
    """Fold one tick in. `weight` is the candidate's percent of the traffic, if it was given."""
    if weight != session.step:
        evidence = next_step(session.evidence)
        session = replace(session, evidence=evidence, step=weight, step_requests=0, step_ticks=0)
    unhealthy = 0 if observation.healthy else session.unhealthy_ticks + 1
    session = replace(session, unhealthy_ticks=unhealthy)
    if observation.window is None:
        return session
    ours, theirs = observation.window.candidate, observation.window.live
    if weight is None:
        total = ours.total + theirs.total
        enough = total > 0 and 100 * ours.total >= _NEARLY_EQUAL * total
    else:
        enough = spec.representative(weight)
    window = replace(observation.window, representative=enough)
    return replace(
        session,
        evidence=fold(session.evidence, window, spec),
        step_requests=session.step_requests + ours.requests,
        step_ticks=session.step_ticks + (ours.requests > 0),
    )


def judge(session: GateSession, spec: RolloutSpec, *, final: bool) -> Verdict:
    """The verdict after `absorb`: ADVANCE needs data and no doubt, `final` the proof as well."""
    if session.failed is not None:
        return session.failed
    if session.unhealthy_ticks >= gates.MAX_UNHEALTHY_TICKS:
        why = f"no server of the candidate answered at {session.unhealthy_ticks} ticks in a row"
        return Verdict(Action.ROLLBACK, Gate.HEALTH, why, session.unhealthy_ticks)
    return (
        gates.harm(session.evidence, spec)
        or _too_little(session, spec)
        or gates.doubtful(session.evidence, spec)
        or (gates.unproved(session.evidence, spec) if final else None)
        or Verdict(
            Action.ADVANCE,
            HoldReason.PROOF if final else HoldReason.DATA,
            "every gate is kept",
            n=session.step_requests,
        )
    )


def _too_little(session: GateSession, spec: RolloutSpec) -> Verdict | None:
    n, ticks = session.step_requests, session.step_ticks
    if n >= spec.min_requests and ticks >= gates.MIN_TICKS:
        return None
    why = f"{n} answers in {ticks} ticks, {spec.min_requests} in {gates.MIN_TICKS} are needed"
    return Verdict(Action.HOLD, HoldReason.DATA, why, n, spec.min_requests, n)
