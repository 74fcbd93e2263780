"""The rollout's state machine: phases, one transition table, one decision per look. Pure.

PENDING starts the candidate, WARM waits until it serves, SHIFT gives it a share of the
traffic, BAKE all of it while the old revision stays warm, FINALIZE writes down the result.
ROLLBACK may follow any phase before FINALIZE and needs one write of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from rollout import gates
from rollout.counts import Window
from rollout.gates import Action, Evidence, Gate, Verdict
from rollout.model import Outcome, RolloutSpec


class Phase(StrEnum):
    """Where a rollout stands."""

    PENDING = "pending"
    WARM = "warm"
    SHIFT = "shift"
    BAKE = "bake"
    FINALIZE = "finalize"
    ROLLBACK = "rollback"
    DONE = "done"


class Signal(StrEnum):
    """What moves a rollout on."""

    LAUNCHED = "launched"
    NEXT_STEP = "next_step"
    LAST_STEP = "last_step"
    PROVED = "proved"
    GIVE_UP = "give_up"
    SETTLED = "settled"


TRANSITIONS: dict[tuple[Phase, Signal], Phase] = {
    (Phase.PENDING, Signal.LAUNCHED): Phase.WARM,
    (Phase.WARM, Signal.NEXT_STEP): Phase.SHIFT,
    (Phase.WARM, Signal.LAST_STEP): Phase.BAKE,
    (Phase.SHIFT, Signal.NEXT_STEP): Phase.SHIFT,
    (Phase.SHIFT, Signal.LAST_STEP): Phase.BAKE,
    (Phase.BAKE, Signal.PROVED): Phase.FINALIZE,
    (Phase.FINALIZE, Signal.SETTLED): Phase.DONE,
    (Phase.PENDING, Signal.GIVE_UP): Phase.ROLLBACK,
    (Phase.WARM, Signal.GIVE_UP): Phase.ROLLBACK,
    (Phase.SHIFT, Signal.GIVE_UP): Phase.ROLLBACK,
    (Phase.BAKE, Signal.GIVE_UP): Phase.ROLLBACK,
    (Phase.ROLLBACK, Signal.SETTLED): Phase.DONE,
}
EXPOSED = frozenset({Phase.SHIFT, Phase.BAKE})
ABORTABLE = frozenset(phase for phase, signal in TRANSITIONS if signal is Signal.GIVE_UP)


@dataclass(frozen=True, slots=True)
class Progress:
    """A rollout's position. Times are wall-clock seconds; `step` is -1 before the first.

    `since` is when this phase or step began, `exposed` when traffic first reached the
    candidate, `first_bad` when a look first found it beyond a limit, `restored` when the
    traffic was back on the live revision. `planned` is how it will end and `ruling` why.
    """

    phase: Phase = Phase.PENDING
    step: int = -1
    started: float = 0.0
    since: float = 0.0
    exposed: float | None = None
    first_bad: float | None = None
    restored: float | None = None
    unhealthy_looks: int = 0
    step_requests: int = 0
    step_ticks: int = 0
    planned: Outcome | None = None
    ruling: Verdict | None = None
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at an exposed candidate found; `window` is None when nothing was counted."""

    window: Window | None
    healthy: bool = True
    alive: bool = True


def candidate_weight(progress: Progress, spec: RolloutSpec) -> int:
    """Percent of traffic for the candidate."""
    if progress.phase is Phase.SHIFT:
        return spec.steps[progress.step]
    if progress.phase in (Phase.BAKE, Phase.FINALIZE):
        return 100
    return 100 if progress.planned is Outcome.PROMOTED else 0


def next_signal(progress: Progress, spec: RolloutSpec) -> Signal:
    """The signal that ends this step: the next one is the last, or not."""
    return Signal.LAST_STEP if progress.step + 2 >= len(spec.steps) else Signal.NEXT_STEP


def move(progress: Progress, signal: Signal, now: float) -> Progress:
    """Follow the table; ValueError for a move that it does not have."""
    target = TRANSITIONS.get((progress.phase, signal))
    if target is None:
        raise ValueError(f"{progress.phase} takes no {signal}")
    step = progress.step + (signal in (Signal.NEXT_STEP, Signal.LAST_STEP))
    exposed = now if progress.exposed is None and target in EXPOSED else progress.exposed
    return replace(
        progress,
        phase=target,
        step=step,
        since=now,
        exposed=exposed,
        step_requests=0,
        step_ticks=0,
        planned=Outcome.PROMOTED if signal is Signal.PROVED else progress.planned,
    )


def obey(progress: Progress, verdict: Verdict, spec: RolloutSpec, now: float) -> Progress:
    """Where a verdict leads: the next step, ROLLBACK, or nowhere for HOLD."""
    match verdict.action:
        case Action.HOLD:
            return progress
        case Action.ADVANCE if progress.phase is Phase.BAKE:
            return replace(move(progress, Signal.PROVED, now), ruling=verdict)
        case Action.ADVANCE:
            return move(progress, next_signal(progress, spec), now)
        case Action.ROLLBACK:
            planned = Outcome.ROLLED_BACK
        case Action.INCONCLUSIVE:
            planned = Outcome.INCONCLUSIVE
    return replace(move(progress, Signal.GIVE_UP, now), planned=planned, ruling=verdict)


def absorb(progress: Progress, look: Look, spec: RolloutSpec, now: float) -> Progress:
    """Fold one look into the progress. Warm-up looks count only towards health."""
    unhealthy = 0 if look.healthy else progress.unhealthy_looks + 1
    progress = replace(progress, unhealthy_looks=unhealthy)
    if look.window is None or warming_up(progress, spec, now):
        return progress
    ours = look.window.candidate
    bad = gates.breaks((ours.errors, ours.requests), spec.max_error_rate) or gates.breaks(
        (ours.slow, ours.timed), gates.SLOW_SHARE
    )
    first_bad = now if bad and progress.first_bad is None else progress.first_bad
    return replace(
        progress,
        evidence=gates.fold(progress.evidence, look.window, spec),
        step_requests=progress.step_requests + ours.requests,
        step_ticks=progress.step_ticks + (ours.requests > 0),
        first_bad=first_bad,
    )


def warming_up(progress: Progress, spec: RolloutSpec, now: float) -> bool:
    """Whether the candidate's first requests are still excluded."""
    return progress.exposed is not None and now - progress.exposed < spec.warmup_seconds


def judge(progress: Progress, look: Look, spec: RolloutSpec, now: float) -> Verdict:
    """The verdict on an exposed candidate after `absorb`."""
    return (
        _hard(progress, look)
        or gates.harm(progress.evidence, spec)
        or _expired(progress, spec, now)
        or _not_yet(progress, spec, now)
        or Verdict(
            Action.ADVANCE,
            Gate.PROOF if _needs_proof(progress, spec) else Gate.BAKE_TIME,
            "every gate is kept",
            n=progress.step_requests,
        )
    )


def _hard(progress: Progress, look: Look) -> Verdict | None:
    if not look.alive:
        return Verdict(Action.ROLLBACK, Gate.HEALTH, "the candidate's process died")
    looks = progress.unhealthy_looks
    if looks < gates.UNHEALTHY_LOOKS:
        return None
    why = f"the candidate failed its health check at {looks} looks in a row"
    return Verdict(Action.ROLLBACK, Gate.HEALTH, why, looks, gates.UNHEALTHY_LOOKS)


def _expired(progress: Progress, spec: RolloutSpec, now: float) -> Verdict | None:
    age = now - progress.started
    if age < spec.deadline_seconds:
        return None
    held = gates.unproved(progress.evidence, spec)
    why = "the deadline came before the proof" + (f": {held.why}" if held else "")
    n = progress.evidence.candidate.requests
    return Verdict(Action.INCONCLUSIVE, Gate.DEADLINE, why, age, spec.deadline_seconds, n)


def _not_yet(progress: Progress, spec: RolloutSpec, now: float) -> Verdict | None:
    n, needed = progress.step_requests, spec.min_requests
    if n < needed or progress.step_ticks < gates.MIN_TICKS:
        # Only answers are data: a candidate that hangs must not pass on requests it lost.
        why = f"{n} answers in {progress.step_ticks} ticks at this step, {needed} are needed"
        return Verdict(Action.HOLD, Gate.DATA, why, n, needed, n)
    minimum = spec.bake_seconds if progress.phase is Phase.BAKE else spec.step_seconds
    if now - progress.since < minimum:
        why = f"{now - progress.since:.1f} of {minimum:g} s at this step"
        return Verdict(Action.HOLD, Gate.BAKE_TIME, why, now - progress.since, minimum, n)
    doubt = gates.doubtful(progress.evidence, spec)
    if doubt is None and _needs_proof(progress, spec):
        return gates.unproved(progress.evidence, spec)
    return doubt


def _needs_proof(progress: Progress, spec: RolloutSpec) -> bool:
    return progress.phase is Phase.BAKE or next_signal(progress, spec) is Signal.LAST_STEP
