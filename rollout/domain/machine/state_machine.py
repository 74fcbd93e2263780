"""The rollout's state machine: phases, one transition table, one decision per tick. Pure.

PENDING starts the candidate, WARM waits until it serves, SHADOW sends it copies of the
traffic, SHIFT gives it a share, BAKE all of it while the old revision stays warm, FINALIZE
records the result. A return to the previous version goes from WARM to FINALIZE. PAUSED keeps the
weight of the phase that it interrupts. ROLLBACK may follow any phase before FINALIZE and needs one
write of the weights. Holding is a verdict, not a phase: the next tick may move on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine.evidence import (
    GateEvidence,
    fold,
    fold_labels,
    fold_shadow,
    next_step,
)
from mlctl.rollout.domain.operator_commands import OperatorCommand, OperatorRequest
from mlctl.rollout.domain.shadow import agreement
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.shadow.labels import LabelledTrials
from mlctl.rollout.domain.spec import OnInconclusive, Outcome, RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action, Gate, HoldReason, Verdict
from mlctl.rollout.domain.traffic.counts import Window


class RolloutPhase(StrEnum):
    """Where a rollout stands."""

    PENDING = "pending"
    WARM = "warm"
    SHADOW = "shadow"
    SHIFT = "shift"
    BAKE = "bake"
    FINALIZE = "finalize"
    PAUSED = "paused"
    ROLLBACK = "rollback"
    DONE = "done"


class Signal(StrEnum):
    """An input of the state machine."""

    LAUNCHED = "launched"
    MIRROR = "mirror"
    NEXT_STEP = "next_step"
    LAST_STEP = "last_step"
    PROVED = "proved"
    RETURN = "return"
    PAUSE = "pause"
    RESUME = "resume"
    GIVE_UP = "give_up"
    SETTLED = "settled"


WATCHED = frozenset({RolloutPhase.SHADOW, RolloutPhase.SHIFT, RolloutPhase.BAKE})
EXPOSED = frozenset({RolloutPhase.SHIFT, RolloutPhase.BAKE})
_ENDS_AS = {Signal.PROVED: Outcome.PROMOTED, Signal.RETURN: Outcome.RESTORED}
PAUSABLE = frozenset({RolloutPhase.WARM, *WATCHED})
REVERSIBLE = frozenset({RolloutPhase.PENDING, RolloutPhase.PAUSED, *PAUSABLE})

# After this time without a request the hold says that traffic is missing.
IDLE_SECONDS = 5.0

# RESUME leads back to the phase that was paused: None here.
TRANSITIONS: dict[tuple[RolloutPhase, Signal], RolloutPhase | None] = {
    (RolloutPhase.PENDING, Signal.LAUNCHED): RolloutPhase.WARM,
    (RolloutPhase.WARM, Signal.MIRROR): RolloutPhase.SHADOW,
    (RolloutPhase.WARM, Signal.NEXT_STEP): RolloutPhase.SHIFT,
    (RolloutPhase.WARM, Signal.LAST_STEP): RolloutPhase.BAKE,
    (RolloutPhase.WARM, Signal.RETURN): RolloutPhase.FINALIZE,
    (RolloutPhase.SHADOW, Signal.NEXT_STEP): RolloutPhase.SHIFT,
    (RolloutPhase.SHADOW, Signal.LAST_STEP): RolloutPhase.BAKE,
    (RolloutPhase.SHIFT, Signal.NEXT_STEP): RolloutPhase.SHIFT,
    (RolloutPhase.SHIFT, Signal.LAST_STEP): RolloutPhase.BAKE,
    (RolloutPhase.BAKE, Signal.PROVED): RolloutPhase.FINALIZE,
    (RolloutPhase.FINALIZE, Signal.SETTLED): RolloutPhase.DONE,
    (RolloutPhase.PAUSED, Signal.RESUME): None,
    (RolloutPhase.ROLLBACK, Signal.SETTLED): RolloutPhase.DONE,
    **{(phase, Signal.PAUSE): RolloutPhase.PAUSED for phase in PAUSABLE},
    **{(phase, Signal.GIVE_UP): RolloutPhase.ROLLBACK for phase in REVERSIBLE},
}


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """A rollout's position. Times are wall-clock seconds; `step` is -1 before the first.

    `since` is when this phase or step began and `started` the deadline's begin; both move on
    by the length of a pause, which `interrupted` from `paused` on. `exposed` is when traffic
    first reached the candidate, `first_bad` when a tick first found it beyond a limit,
    `restored` when the traffic was back on the live revision. `planned` is how it will end and
    `ruling` why. `override` means that an operator skips the gates; `applied` is the place in
    the journal of the last operator's request that was carried out. `idle_since` is when the last
    request came, None while there is traffic.
    """

    phase: RolloutPhase = RolloutPhase.PENDING
    step: int = -1
    started: float = 0.0
    since: float = 0.0
    exposed: float | None = None
    first_bad: float | None = None
    restored: float | None = None
    unhealthy_ticks: int = 0
    step_requests: int = 0
    step_ticks: int = 0
    planned: Outcome | None = None
    ruling: Verdict | None = None
    interrupted: RolloutPhase | None = None
    paused: float | None = None
    override: bool = False
    applied: int = 0
    idle_since: float | None = None
    evidence: GateEvidence = field(default_factory=GateEvidence)

    @property
    def stage(self) -> RolloutPhase:
        """The phase whose weight holds: the interrupted one while it is paused."""
        return self.interrupted or self.phase


@dataclass(frozen=True, slots=True)
class TickObservation:
    """What one observation of a watched candidate found.

    `window` is None when nothing was counted, `shadow` when nothing was copied, `labelled` when no
    label arrived.
    """

    window: Window | None
    healthy: bool = True
    alive: bool = True
    shadow: ShadowWindow | None = None
    labelled: LabelledTrials | None = None


def candidate_weight(progress: RolloutProgress, spec: RolloutSpec) -> int:
    """Percent of traffic for the candidate."""
    if progress.stage is RolloutPhase.SHIFT:
        return spec.steps[progress.step]
    if progress.stage in (RolloutPhase.BAKE, RolloutPhase.FINALIZE):
        return 100
    return 100 if progress.planned is not None and progress.planned.replaces_live else 0


def mirrored_share(progress: RolloutProgress, spec: RolloutSpec) -> int:
    """Percent of the live traffic that is copied to the candidate."""
    shares = {RolloutPhase.SHADOW: spec.shadow_percent, RolloutPhase.SHIFT: spec.mirror_percent}
    return shares.get(progress.stage, 0)


def next_signal(progress: RolloutProgress, spec: RolloutSpec) -> Signal:
    """The signal that ends this step: the next one is the last, or not."""
    return Signal.LAST_STEP if progress.step + 2 >= len(spec.steps) else Signal.NEXT_STEP


def warmed(progress: RolloutProgress, spec: RolloutSpec, now: float) -> RolloutProgress:
    """Where a candidate goes that serves: SHADOW, or the first step. Its deadline begins now."""
    progress = replace(progress, started=now)
    if progress.override:
        return _skip_to_bake(progress, spec, now)
    if spec.shadow_percent:
        return move(progress, Signal.MIRROR, now)
    return move(progress, next_signal(progress, spec), now)


def restored(progress: RolloutProgress, reason: str, now: float) -> RolloutProgress:
    """Give all traffic to the previous version, which serves: no step, no gate."""
    ruling = Verdict(Action.ADVANCE, HoldReason.OPERATOR, reason)
    return replace(move(progress, Signal.RETURN, now), ruling=ruling)


def move(progress: RolloutProgress, signal: Signal, now: float) -> RolloutProgress:
    """Follow the table; ValueError for a move that it does not have."""
    if (progress.phase, signal) not in TRANSITIONS:
        raise ValueError(f"{progress.phase} takes no {signal}")
    target = TRANSITIONS[progress.phase, signal]
    if target is None:
        return _resumed(progress, now)
    if target is RolloutPhase.PAUSED:
        return replace(progress, phase=target, interrupted=progress.phase, paused=now)
    step = progress.step + (signal in (Signal.NEXT_STEP, Signal.LAST_STEP))
    exposed = now if progress.exposed is None and target in EXPOSED else progress.exposed
    evidence = progress.evidence
    if signal in (Signal.NEXT_STEP, Signal.LAST_STEP):
        evidence = next_step(evidence)
    return replace(
        progress,
        phase=target,
        step=step,
        since=now,
        exposed=exposed,
        step_requests=0,
        step_ticks=0,
        planned=_ENDS_AS.get(signal, progress.planned),
        interrupted=None,
        paused=None,
        evidence=evidence,
    )


def _resumed(progress: RolloutProgress, now: float) -> RolloutProgress:
    """Back in the interrupted phase, with its clocks as they stood."""
    length = now - (now if progress.paused is None else progress.paused)
    expired = progress.ruling is not None and progress.ruling.gate is HoldReason.DEADLINE
    return replace(
        progress,
        phase=progress.stage,
        # After a takeover the clock began anew, later than the pause.
        since=min(now, progress.since + length),
        # To resume after the deadline allows that time once more.
        started=now if expired else progress.started + length,
        interrupted=None,
        paused=None,
        ruling=None,
    )


def _skip_to_bake(progress: RolloutProgress, spec: RolloutSpec, now: float) -> RolloutProgress:
    """Give the candidate all of the traffic at once."""
    return replace(move(progress, Signal.LAST_STEP, now), step=len(spec.steps) - 1)


def apply_verdict(
    progress: RolloutProgress, verdict: Verdict, spec: RolloutSpec, now: float
) -> RolloutProgress:
    """Where a verdict leads: the next step, ROLLBACK, PAUSED, or nowhere for HOLD."""
    match verdict.action:
        case Action.HOLD:
            return progress
        case Action.ADVANCE if progress.phase is RolloutPhase.BAKE:
            return replace(move(progress, Signal.PROVED, now), ruling=verdict)
        case Action.ADVANCE:
            return move(progress, next_signal(progress, spec), now)
        case Action.ROLLBACK:
            return give_up(progress, Outcome.ROLLED_BACK, verdict, now)
        case Action.INCONCLUSIVE if spec.on_inconclusive is OnInconclusive.PAUSE:
            return replace(move(progress, Signal.PAUSE, now), ruling=verdict)
        case Action.INCONCLUSIVE:  # pragma: no branch - mypy proves that there is no other
            return give_up(progress, Outcome.INCONCLUSIVE, verdict, now)


def give_up(
    progress: RolloutProgress, outcome: Outcome, verdict: Verdict, now: float
) -> RolloutProgress:
    """To ROLLBACK, to end as `outcome`."""
    return replace(move(progress, Signal.GIVE_UP, now), planned=outcome, ruling=verdict)


def apply_command(
    progress: RolloutProgress, request: OperatorRequest, spec: RolloutSpec, now: float
) -> RolloutProgress | None:
    """Where an operator's request leads; None if it has to wait. It is applied only once."""
    phase, noted = progress.phase, replace(progress, applied=request.seq)
    verdict = Verdict(Action.ROLLBACK, HoldReason.OPERATOR, request.reason)
    match request.command:
        case OperatorCommand.ROLLBACK:
            return give_up(noted, Outcome.ROLLED_BACK, verdict, now)
        case OperatorCommand.PAUSE if phase is RolloutPhase.PENDING:
            return None
        case OperatorCommand.PAUSE:
            return move(noted, Signal.PAUSE, now) if phase in PAUSABLE else noted
        case OperatorCommand.RESUME:
            return move(noted, Signal.RESUME, now) if phase is RolloutPhase.PAUSED else noted
        case OperatorCommand.FULL:  # pragma: no branch - mypy proves that there is no other
            ready = move(noted, Signal.RESUME, now) if phase is RolloutPhase.PAUSED else noted
            skipping = replace(ready, override=True)
            exposed = ready.phase in (RolloutPhase.SHADOW, RolloutPhase.SHIFT)
            return _skip_to_bake(skipping, spec, now) if exposed else skipping


def absorb(
    progress: RolloutProgress, observation: TickObservation, spec: RolloutSpec, now: float
) -> RolloutProgress:
    """Fold one tick into the progress. Warm-up ticks count only towards health."""
    unhealthy = 0 if observation.healthy else progress.unhealthy_ticks + 1
    if unhealthy != progress.unhealthy_ticks:
        progress = replace(progress, unhealthy_ticks=unhealthy)
    progress = _absorb_shadow(_absorb_idle(progress, observation, now), observation, spec)
    if observation.labelled is not None:
        evidence = fold_labels(progress.evidence, observation.labelled)
        progress = replace(progress, evidence=evidence)
    if observation.window is None or warming_up(progress, spec, now):
        return progress
    ours = observation.window.candidate
    evidence = fold(progress.evidence, observation.window, spec)
    bad = gates.tick_breaks_limit(ours, spec) or gates.doubtful(evidence, spec) is not None
    first_bad = now if bad and progress.first_bad is None else progress.first_bad
    progress = replace(progress, evidence=evidence, first_bad=first_bad)
    # In SHADOW the copies are counted, not what a tester sends.
    return progress if progress.stage is RolloutPhase.SHADOW else _counted(progress, ours.requests)


def _absorb_idle(
    progress: RolloutProgress, observation: TickObservation, now: float
) -> RolloutProgress:
    window = observation.window
    if window is None:
        return progress
    if window.candidate.total or window.live.total:
        return replace(progress, idle_since=None)
    since = now - window.seconds if progress.idle_since is None else progress.idle_since
    return replace(progress, idle_since=since)


def no_traffic(progress: RolloutProgress, now: float) -> str | None:
    """Return the sentence about the missing traffic; None while there is some."""
    if progress.idle_since is None or now - progress.idle_since < IDLE_SECONDS:
        return None
    return f"no requests in the last {now - progress.idle_since:.0f} s; the gates need traffic"


def _absorb_shadow(
    progress: RolloutProgress, observation: TickObservation, spec: RolloutSpec
) -> RolloutProgress:
    if observation.shadow is None:
        return progress
    evidence = fold_shadow(progress.evidence, observation.shadow, spec)
    progress = replace(progress, evidence=evidence)
    if progress.stage is not RolloutPhase.SHADOW:
        return progress
    return _counted(progress, observation.shadow.requests)


def _counted(progress: RolloutProgress, requests: int) -> RolloutProgress:
    return replace(
        progress,
        step_requests=progress.step_requests + requests,
        step_ticks=progress.step_ticks + (requests > 0),
    )


def warming_up(progress: RolloutProgress, spec: RolloutSpec, now: float) -> bool:
    """Whether the candidate's first requests, or the first copies, are still excluded."""
    first = progress.since if progress.stage is RolloutPhase.SHADOW else progress.exposed
    return first is not None and now - first < spec.warmup_seconds


def judge(
    progress: RolloutProgress, observation: TickObservation, spec: RolloutSpec, now: float
) -> Verdict:
    """The verdict on a watched candidate after `absorb`."""
    if progress.override:
        return _hard(progress, observation) or _overridden(progress, spec, now)
    return (
        _hard(progress, observation)
        or gates.harm(progress.evidence, spec)
        or _paused(progress)
        or _expired(progress, spec, now)
        or _held(progress, spec, now)
        or Verdict(
            Action.ADVANCE,
            HoldReason.PROOF if _needs_proof(progress, spec) else HoldReason.STEP_TIME,
            _kept(progress),
            n=progress.step_requests,
        )
    )


def _kept(progress: RolloutProgress) -> str:
    if progress.phase is not RolloutPhase.BAKE:
        return "every gate is kept"
    return f"every gate is kept; {gates.not_excluded(progress.evidence.representative_seconds)}"


def _hard(progress: RolloutProgress, observation: TickObservation) -> Verdict | None:
    if not observation.alive:
        return Verdict(Action.ROLLBACK, Gate.HEALTH, "the candidate's process died")
    ticks = progress.unhealthy_ticks
    if ticks < gates.MAX_UNHEALTHY_TICKS:
        return None
    why = f"the candidate failed its health check at {ticks} ticks in a row"
    return Verdict(Action.ROLLBACK, Gate.HEALTH, why, ticks, gates.MAX_UNHEALTHY_TICKS)


def _overridden(progress: RolloutProgress, spec: RolloutSpec, now: float) -> Verdict:
    """Only the clock: the old revision stays warm for as long as it would have."""
    n, baked = progress.step_requests, now - progress.since
    if progress.phase is not RolloutPhase.BAKE or baked < spec.bake_seconds:
        why = "an operator skips the gates; the old revision stays warm"
        return Verdict(Action.HOLD, HoldReason.OPERATOR, why, baked, spec.bake_seconds, n)
    return Verdict(
        Action.ADVANCE, HoldReason.OPERATOR, "an operator skipped the gates: no proof", n=n
    )


def _paused(progress: RolloutProgress) -> Verdict | None:
    if progress.phase is not RolloutPhase.PAUSED:
        return None
    why = f"paused in {progress.stage}; harm would still take the traffic back"
    return Verdict(Action.HOLD, HoldReason.OPERATOR, why, n=progress.step_requests)


def _expired(progress: RolloutProgress, spec: RolloutSpec, now: float) -> Verdict | None:
    age = now - progress.started
    if age < spec.deadline_seconds:
        return None
    held = _not_yet(progress, spec, now)
    why = "the deadline came before the proof" + (f": {held.why}" if held else "")
    n = progress.evidence.candidate.requests
    return Verdict(Action.INCONCLUSIVE, HoldReason.DEADLINE, why, age, spec.deadline_seconds, n)


def _held(progress: RolloutProgress, spec: RolloutSpec, now: float) -> Verdict | None:
    """What is missing; in a shadow that only lacks answers, the end of its patience first."""
    held = _not_yet(progress, spec, now)
    lacks = held is not None and held.gate in (HoldReason.DATA, HoldReason.PROOF)
    if held is not None and lacks:
        held = replace(held, why=no_traffic(progress, now) or held.why)
    if progress.phase is not RolloutPhase.SHADOW or not lacks:
        return held
    evidence, waited = progress.evidence, now - progress.since
    copies = evidence.candidate.requests
    return agreement.given_up(evidence.shadow, spec, copies, waited) or held


def _not_yet(progress: RolloutProgress, spec: RolloutSpec, now: float) -> Verdict | None:
    n, needed = progress.step_requests, needed_requests(progress.phase, spec)
    if n < needed or progress.step_ticks < gates.MIN_TICKS:
        # Only answers are data: a candidate that hangs must not pass on requests it lost.
        why = f"{n} answers in {progress.step_ticks} ticks at this step, {needed} are needed"
        return Verdict(Action.HOLD, HoldReason.DATA, why, n, needed, n)
    minimum = min_seconds(progress.phase, spec)
    if now - progress.since < minimum:
        why = f"{now - progress.since:.1f} of {minimum:g} s at this step"
        return Verdict(Action.HOLD, HoldReason.STEP_TIME, why, now - progress.since, minimum, n)
    compared = mirrored_share(progress, spec) > 0
    doubt = gates.judge_shadow(progress.evidence, spec) if compared else None
    if progress.phase is RolloutPhase.SHADOW:
        return doubt
    doubt = doubt or gates.doubtful(progress.evidence, spec)
    if doubt is None and _needs_proof(progress, spec):
        # More traffic is the way to more evidence, so bursts count for themselves only at the end.
        promotes = progress.phase is RolloutPhase.BAKE
        return gates.unproved(progress.evidence, spec, bursts=promotes)
    return doubt


def needed_requests(phase: RolloutPhase, spec: RolloutSpec) -> int:
    """How many answers of the candidate a step of `phase` waits for."""
    return spec.shadow_requests if phase is RolloutPhase.SHADOW else spec.min_requests


def min_seconds(phase: RolloutPhase, spec: RolloutSpec) -> float:
    """The shortest time at a step of `phase`."""
    times = {RolloutPhase.SHADOW: spec.shadow_seconds, RolloutPhase.BAKE: spec.bake_seconds}
    return times.get(phase, spec.step_seconds)


def _needs_proof(progress: RolloutProgress, spec: RolloutSpec) -> bool:
    return progress.phase is RolloutPhase.BAKE or next_signal(progress, spec) is Signal.LAST_STEP
