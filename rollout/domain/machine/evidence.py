"""All ticks of a rollout folded into evidence. Pure.

Folding the recorded ticks into the evidence that a rollout began with rebuilds it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mlctl.rollout.domain.machine.gate_table import GATES, GateRule
from mlctl.rollout.domain.shadow import agreement
from mlctl.rollout.domain.shadow.agreement import ShadowEvidence, ShadowWindow
from mlctl.rollout.domain.shadow.labels import LabelledTrials
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.statistics.bursts import NO_TRIALS, Trials
from mlctl.rollout.domain.statistics.e_values import NO_EVIDENCE, Logs
from mlctl.rollout.domain.statistics.verdict import Gate, Hits, share
from mlctl.rollout.domain.traffic.counts import Counts, Window

_NOISE = 2.0  # standard errors
HIGHEST_LIMIT = 0.99  # a limit of 1 could not be exceeded


@dataclass(frozen=True, slots=True)
class Streak:
    """Ticks on end with a gross fault: their seconds, and both slots' sums."""

    seconds: float = 0.0
    ours: Hits = (0, 0)
    theirs: Hits = (0, 0)


@dataclass(frozen=True)
class GateTrials:
    """What one gate has counted.

    Attributes:
        ours: the candidate's trials; under sticky routing those of both slots.
        step: the same since the last step began: a fault that comes with the load is not
            outweighed by what was good before; empty for labelled answers.
        theirs: the live slot's, those before the rollout included.
        before: the live slot's, those before the rollout alone.
        representative: the candidate's hits at a representative share of the traffic.
        worse, step_worse: the evidence that the candidate is worse than the live slot, of all and
            since the last step began, not yet divided by the design effect.
        streak: the gross fault that goes on now.
        run, run_theirs: the candidate's trials since its share is beyond the limit in each block,
            and the live slot's hits in that time.
    """

    ours: Trials = NO_TRIALS
    step: Trials = NO_TRIALS
    theirs: Trials = NO_TRIALS
    before: Trials = NO_TRIALS
    representative: Hits = (0, 0)
    worse: Logs = NO_EVIDENCE
    step_worse: Logs = NO_EVIDENCE
    streak: Streak = field(default_factory=Streak)
    run: Trials = NO_TRIALS
    run_theirs: Hits = (0, 0)

    @cached_property
    def design_effect(self) -> float:
        """How many requests count as one: the candidate's figure, or the live slot's if larger."""
        return max(self.ours.design_effect, self.theirs.design_effect)

    def log_harm(self, rule: GateRule, limit: float) -> float:
        """Return the logarithm of the e-value of harm: of all ticks' and this step's mean."""
        logs: tuple[Logs, ...] = (self.worse, self.step_worse)
        if not rule.versus_live:
            scopes = (self.ours, self.step)
            logs = tuple(e_values.above((each.hits, each.n), limit) for each in scopes)
        effect = self.design_effect
        return e_values.log_mean(tuple(e_values.log_mean(each, effect) for each in logs))

    def log_run(self, rule: GateRule, limit: float) -> float:
        """Return the logarithm of the e-value of harm in the present run of bad blocks alone.

        What was good before does not count, neither as requests nor as a part of the bursts.
        """
        run = self.run
        logs = e_values.above((run.hits, run.n), limit)
        if rule.versus_live:
            allowed = usual(self, self.theirs.n, limit)
            logs = _worse((run.hits, run.n), self.run_theirs, self, allowed)
        return e_values.log_mean(logs, max(run.design_effect, self.theirs.design_effect))


_NOTHING = GateTrials()


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """All ticks so far: sums over both slots, what each gate counted, the compared answers.

    `representative_seconds` is how long the candidate had a representative share of the traffic.
    """

    ticks: int = 0
    candidate: Counts = field(default_factory=Counts)
    live: Counts = field(default_factory=Counts)
    trials: Mapping[Gate, GateTrials] = field(default_factory=dict)
    representative_seconds: float = 0.0
    shadow: ShadowEvidence = field(default_factory=ShadowEvidence)

    def of(self, gate: Gate) -> GateTrials:
        """What `gate` has counted; nothing before the first tick."""
        return self.trials.get(gate, _NOTHING)

    def log_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """Return the logarithm of each rollback gate's e-value."""
        values = {}
        for gate, rule, limit in _limited(spec):
            values[gate] = self.of(gate).log_harm(rule, limit)
        if spec.shadows and spec.max_disagreement is not None:
            values[Gate.DISAGREEMENT] = agreement.log_harm(self.shadow, spec.max_disagreement)
        return values

    def proof_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """Return the logarithm of the e-value with which each limit is shown to be kept."""
        values = {
            gate: self.log_proof(gate, rule, limit)
            for gate, rule, limit in _limited(spec)
            if not rule.versus_live
        }
        if spec.shadows and spec.max_disagreement is not None:
            values[Gate.DISAGREEMENT] = agreement.log_proof(self.shadow, spec.max_disagreement)
        return values

    def log_proof(self, gate: Gate, rule: GateRule, limit: float, *, bursts: bool = True) -> float:
        """Return the logarithm of the e-value of one limit's proof.

        Without `bursts` each request counts for itself.
        """
        counted = self.of(gate)
        design_effect = counted.design_effect if bursts else 1.0
        return e_values.log_mean(e_values.below(self.proof_hits(gate, rule), limit), design_effect)

    def proof_hits(self, gate: Gate, rule: GateRule) -> Hits:
        """Return the hits that can prove the gate's limit."""
        counted = self.of(gate)
        return (
            counted.representative if rule.representative else (counted.ours.hits, counted.ours.n)
        )


def begin(record: Iterable[tuple[Counts, float]], spec: RolloutSpec) -> GateEvidence:
    """Return the evidence of a rollout that begins after `record`: the live slot's counts so far.

    Each entry has the length of its time in seconds. The record shows how the service's requests
    depend on each other, and what is usual in the bake, when the live slot has no requests.
    """
    gates = _limited(spec)
    before = {gate: NO_TRIALS for gate, _, _ in gates}
    for counts, seconds in record:
        for gate, rule, _ in gates:
            hits, n = rule.hits(counts)
            before[gate] = before[gate].add(
                hits, n, seconds, burst=spec.burst_seconds, limit=HIGHEST_LIMIT
            )
    if not any(each.n for each in before.values()):
        return GateEvidence()
    return GateEvidence(
        trials={gate: GateTrials(theirs=each, before=each) for gate, each in before.items()}
    )


def next_step(evidence: GateEvidence) -> GateEvidence:
    """Begin a step: what was good before does not speak for the candidate under more load."""
    return replace(
        evidence,
        trials={
            gate: replace(
                each,
                step=NO_TRIALS,
                step_worse=NO_EVIDENCE,
                streak=Streak(),
                run=NO_TRIALS,
                run_theirs=(0, 0),
            )
            for gate, each in evidence.trials.items()
        },
    )


def fold(evidence: GateEvidence, window: Window, spec: RolloutSpec) -> GateEvidence:
    """Add one tick. A tick without candidate requests changes nothing."""
    if window.candidate.total == 0:
        return evidence
    return GateEvidence(
        ticks=evidence.ticks + 1,
        candidate=evidence.candidate.plus(window.candidate),
        live=evidence.live.plus(window.live),
        trials={
            gate: evidence.of(gate)
            if rule.by_labels
            else _fold_gate(evidence.of(gate), rule, limit, window, spec)
            for gate, rule, limit in _limited(spec)
        },
        representative_seconds=evidence.representative_seconds
        + (window.seconds if window.representative else 0.0),
        shadow=evidence.shadow,
    )


def fold_shadow(evidence: GateEvidence, shadow: ShadowWindow, spec: RolloutSpec) -> GateEvidence:
    """Add one tick's pairs of answers."""
    return replace(evidence, shadow=agreement.fold(evidence.shadow, shadow, spec))


def fold_labels(evidence: GateEvidence, labelled: LabelledTrials) -> GateEvidence:
    """Replace what was labelled before: a label may have been corrected since."""
    counted = GateTrials(ours=labelled.candidate, theirs=labelled.live)
    return replace(evidence, trials={**evidence.trials, Gate.ACCURACY_VS_LIMIT: counted})


def usual(counted: GateTrials, requests: int, slack: float) -> float:
    """Return the share up to which `requests` requests are still like the live slot's.

    Its own share, the slack, and two standard errors of the difference.
    """
    live = counted.theirs
    noise = _NOISE * live.noise(requests, counted.design_effect)
    return min(live.share + slack + noise, HIGHEST_LIMIT)


def _limited(spec: RolloutSpec) -> list[tuple[Gate, GateRule, float]]:
    """Return the gates that have a limit, with it; the others judge nothing, so nothing counts."""
    limits = ((gate, rule, rule.limit(spec)) for gate, rule in GATES.items())
    return [(gate, rule, limit) for gate, rule, limit in limits if limit is not None]


def _fold_gate(
    counted: GateTrials, rule: GateRule, limit: float, window: Window, spec: RolloutSpec
) -> GateTrials:
    ours, theirs = rule.hits(window.candidate), rule.hits(window.live)
    streak = _streak(counted.streak, rule, ours, theirs, window.seconds)
    if rule.versus_live and spec.sticky:
        # Each client keeps its slot, so the slots' clients differ. Compared is the whole traffic,
        # now and before the rollout.
        ours, theirs = _plus(ours, theirs), (0, 0)
        counted = replace(counted, theirs=counted.before)
    allowed, tick = limit, NO_EVIDENCE
    if rule.versus_live:
        tick = _worse(ours, theirs, counted, usual(counted, counted.theirs.n, allowed))
        allowed = counted.theirs.share + spec.margin * allowed
    burst, proof = spec.burst_seconds, counted.representative
    run = counted.run.add(*ours, window.seconds, burst=burst, limit=allowed)
    run_theirs = _plus(counted.run_theirs, theirs)
    if run.blocks[0].closed > run.bad_blocks:  # a good block ends it
        run, run_theirs = NO_TRIALS, (0, 0)
    return GateTrials(
        ours=counted.ours.add(*ours, window.seconds, burst=burst, limit=allowed),
        step=counted.step.add(*ours, window.seconds, burst=burst, limit=allowed),
        theirs=counted.theirs.add(*theirs, window.seconds, burst=burst, limit=allowed),
        before=counted.before,
        representative=_plus(proof, ours) if window.representative else proof,
        worse=e_values.add(counted.worse, tick),
        step_worse=e_values.add(counted.step_worse, tick),
        streak=streak,
        run=run,
        run_theirs=run_theirs,
    )


def _plus(hits: Hits, more: Hits) -> Hits:
    return hits[0] + more[0], hits[1] + more[1]


def _worse(ours: Hits, theirs: Hits, counted: GateTrials, allowed: float) -> Logs:
    """Compare one tick with the live slot's, or in the bake with what it did before."""
    if not ours[1]:
        return NO_EVIDENCE
    if theirs[1]:
        return e_values.higher(ours, theirs)
    return e_values.above(ours, allowed) if counted.theirs.n else NO_EVIDENCE


def _streak(streak: Streak, rule: GateRule, ours: Hits, theirs: Hits, seconds: float) -> Streak:
    if rule.gross is None or not ours[1]:
        return streak
    if share(ours) < rule.gross.share / 2.0:
        return Streak()
    return Streak(streak.seconds + seconds, _plus(streak.ours, ours), _plus(streak.theirs, theirs))
