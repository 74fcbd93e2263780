"""The verdict on a candidate: pure functions of the evidence.

- Rollback at once for a gross fault, or for NaN where the live revision answers a number.
- Rollback for a fault that began and stays: several consecutive blocks beyond the limit, judged by
  these blocks alone.
- Rollback for lasting harm: the mean of all gates' e-values and that of one gate reach 1/alpha,
  with bursts counted as one event; that gate's share over all requests is beyond its limit; and
  at least three blocks of time were.
- Suspicion holds: a share beyond its limit, though too little to decide, stops every step.
- The promotion needs the proof that each limit is kept. No data is never a proof.
"""

from __future__ import annotations

import math

from mlctl.rollout.domain.machine.evidence import HIGHEST_LIMIT, GateEvidence, usual
from mlctl.rollout.domain.machine.gate_table import GATES, GateRule
from mlctl.rollout.domain.shadow import agreement
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.statistics.verdict import (
    Action,
    Gate,
    Hits,
    HoldReason,
    Verdict,
    breaks,
    share,
)
from mlctl.rollout.domain.traffic.counts import Counts

MIN_TICKS = 3
MAX_UNHEALTHY_TICKS = 3
# What comes at random every T seconds is seen in 3 T with a probability of 95 % (rule of three).
_PERIODS_TO_SEE = 3.0
# Independent requests at their usual share reach this with a chance of 1e-4 per streak or run.
_SURE = math.log(1e4)
# Two bursts touch at most four blocks.
_RUN_BLOCKS = 5


def harm(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return ROLLBACK with the strongest gate that fires, or None."""
    return (
        agreement.broken(evidence.shadow)
        or _gross(evidence, spec)
        or _lasting(evidence, spec)
        or _begun(evidence, spec)
    )


def doubtful(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return HOLD while a share is beyond its limit, though too little to prove harm; else None.

    A candidate that ticks bad gets no more traffic before more requests have decided.
    """
    for gate, rule in GATES.items():
        counted, limit = evidence.of(gate), rule.limit(spec)
        if limit is None or (rule.versus_live and not counted.theirs.n):
            continue
        for trials in (counted.ours, counted.step):
            hits = (trials.hits, trials.n)
            allowed = usual(counted, trials.n, limit) if rule.versus_live else limit
            if breaks(hits, allowed):
                why = _compared(rule, hits, limit, evidence, gate, spec)
                why = f"{why}; more requests will decide"
                return Verdict(Action.HOLD, gate, why, share(hits), allowed, int(hits[1]))
    return None


def unproved(evidence: GateEvidence, spec: RolloutSpec, *, bursts: bool = True) -> Verdict | None:
    """Return HOLD with the first limit that is not yet shown to be kept, or None when all are.

    With `bursts` the requests of a burst count as one, as the promotion demands; without, each
    request counts.
    """
    threshold = math.log(1.0 / spec.alpha)
    for gate, rule in GATES.items():
        limit = rule.limit(spec)
        if rule.versus_live or limit is None:
            continue
        if evidence.log_proof(gate, rule, limit, bursts=bursts) < threshold:
            hits = evidence.proof_hits(gate, rule)
            why = f"{rule.sentence(hits, spec)}: too few to show that {limit:.4g} is kept"
            effect = evidence.of(gate).design_effect
            if bursts and effect >= 2.0:
                why += f"; they come in bursts, in which {effect:.0f} requests count as one"
            return Verdict(Action.HOLD, HoldReason.PROOF, why, share(hits), limit, int(hits[1]))
    return None


def judge_shadow(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return HOLD until the answers to copied requests are shown to be as live's, or None.

    The copies' own errors and latencies are in the evidence as well.
    """
    return (
        doubtful(evidence, spec)
        or agreement.doubtful(evidence.shadow, spec)
        or agreement.unproved(evidence.shadow, spec)
    )


def not_excluded(representative_seconds: float) -> str:
    """Return which faults watching a representative share for so long cannot exclude."""
    period = representative_seconds / _PERIODS_TO_SEE
    return f"a fault that comes less often than every {period:.0f} s is not excluded"


def tick_breaks_limit(ours: Counts, spec: RolloutSpec) -> bool:
    """Return whether one tick of the candidate alone exceeds an absolute limit."""
    return any(
        breaks(rule.hits(ours), limit)
        for rule in GATES.values()
        if not rule.versus_live and (limit := rule.limit(spec)) is not None
    )


def _gross(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    for gate, rule in GATES.items():
        streak, gross, limit = evidence.of(gate).streak, rule.gross, rule.limit(spec)
        if gross is None or limit is None:
            continue
        if rule.versus_live and spec.sticky:
            continue  # the slots have different clients
        ours, theirs = share(streak.ours), share(streak.theirs)
        lasts = streak.seconds >= gross.seconds and streak.ours[0] >= gross.hits
        if not lasts or ours < gross.share:
            continue
        live = max(theirs, evidence.of(gate).theirs.share, evidence.of(gate).theirs.worst)
        if ours >= 2.0 * live and _beyond_chance(streak.ours, max(live, limit)):
            why = (
                f"{rule.sentence(streak.ours, spec)} in {streak.seconds:.1f} s on end "
                f"({100.0 * theirs:.2f} % on the live revision)"
            )
            n = int(streak.ours[1])
            return Verdict(Action.ROLLBACK, gate, why, ours, gross.share, n)
    return None


def _lasting(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return ROLLBACK if the evidence of the whole rollout, or of this step, is harm."""
    threshold = math.log(1.0 / spec.alpha)
    values = evidence.log_values(spec)
    if e_values.log_mean(tuple(values.values())) < threshold:
        return None
    shown = [gate for gate, value in values.items() if value >= threshold]
    strongest_first = sorted(shown, key=lambda gate: -values[gate])
    verdicts = (_beyond_limit(gate, evidence, spec) for gate in strongest_first)
    return next((verdict for verdict in verdicts if verdict is not None), None)


def _begun(evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return ROLLBACK for a fault that began and stays, however much was good before."""
    for gate, rule in GATES.items():
        counted, limit = evidence.of(gate), rule.limit(spec)
        if limit is None or counted.run.bad_blocks < _RUN_BLOCKS:
            continue
        run, allowed = counted.run, limit
        if rule.versus_live:
            if spec.sticky:
                continue  # the slots have different clients
            live = share(counted.run_theirs) if counted.run_theirs[1] else counted.theirs.share
            allowed = live + spec.margin * limit
        if breaks((run.hits, run.n), allowed) and counted.log_run(rule, limit) >= _SURE:
            why = (
                f"{rule.sentence((run.hits, run.n), spec)} in {run.bad_blocks} blocks of "
                f"{spec.burst_seconds:g} s on end ({100.0 * allowed:.4g} % allowed)"
            )
            return Verdict(Action.ROLLBACK, gate, why, run.share, allowed, run.n)
    return None


def _beyond_chance(ours: Hits, usual_share: float) -> bool:
    """Return whether `ours` cannot be chance where the share is usually `usual_share`."""
    return e_values.log_mean(e_values.above(ours, min(usual_share, HIGHEST_LIMIT))) >= _SURE


def _beyond_limit(gate: Gate, evidence: GateEvidence, spec: RolloutSpec) -> Verdict | None:
    """Return ROLLBACK if the share over all requests is beyond the limit, in several blocks."""
    if gate is Gate.DISAGREEMENT:
        return agreement.disagrees(evidence.shadow, spec)
    rule = GATES[gate]
    counted, limit = evidence.of(gate), rule.limit(spec)
    assert limit is not None  # else it has no e-value
    allowed = limit
    if rule.versus_live:
        allowed = share(_live(rule, evidence, gate, spec)) + spec.margin * limit
    for trials in (counted.ours, counted.step):
        hits = (trials.hits, trials.n)
        if trials.bad_blocks >= agreement.MIN_BAD_BLOCKS and breaks(hits, allowed):
            why = _compared(rule, hits, limit, evidence, gate, spec)
            return Verdict(Action.ROLLBACK, gate, why, share(hits), allowed, int(hits[1]))
    return None


def _live(rule: GateRule, evidence: GateEvidence, gate: Gate, spec: RolloutSpec) -> Hits:
    """Return the live slot's hits to compare with: of the rollout, else those before it."""
    during = rule.hits(evidence.live)
    if during[1] and not spec.sticky:
        return during
    theirs = evidence.of(gate).theirs
    return theirs.hits, theirs.n


def _compared(
    rule: GateRule, hits: Hits, limit: float, evidence: GateEvidence, gate: Gate, spec: RolloutSpec
) -> str:
    sentence = rule.sentence(hits, spec)
    if not rule.versus_live:
        return f"{sentence} (limit {100.0 * limit:.4g} %)"
    live = _live(rule, evidence, gate, spec)
    return f"{sentence} ({100.0 * share(live):.2f} % of {live[1]:.0f} on the live revision)"
