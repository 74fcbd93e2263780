"""A rollout as a page shows it: its step, its evidence, its deadline. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollout.domain import state_machine as machine
from rollout.domain.spec import Outcome
from rollout.domain.state_machine import WATCHED, RolloutPhase
from rollout.journal.records import JournalEvent, Rollout


@dataclass(frozen=True, slots=True)
class GateView:
    """One e-value; `filled` is how far it has come to the threshold, by logarithms: 0 to 1."""

    gate: str
    value: float
    filled: float


@dataclass(frozen=True, slots=True)
class StepView:
    """The phase or step that a rollout is at, and what it still waits for."""

    phase: RolloutPhase
    number: int
    steps: int
    seconds: float
    least_seconds: float
    requests: int
    needed: int


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A rollout under way or just ended. `harm` takes it back at `threshold`, `proof` moves it on.

    `deadline_left` is in seconds; None while the clock stands still. `agreement` is the share of
    the `compared` requests that both slots answered alike, None without any.
    """

    id: int
    outcome: Outcome | None
    step: StepView
    deadline_left: float | None
    threshold: float
    harm: tuple[GateView, ...]
    proof: tuple[GateView, ...]
    verdict: str
    agreement: float | None
    compared: int
    psi: float | None


def rollout_view(now: float, rollout: Rollout, tick: JournalEvent | None) -> RolloutView:
    """Return what is shown of `rollout` at `now` (wall clock); `tick` is its last one."""
    body = tick.body if tick else {}
    threshold = 1.0 / rollout.spec.alpha
    verdict = rollout.progress.ruling
    why = verdict.why if verdict else body.get("verdict", {}).get("why", "")
    shadow = body.get("shadow") or {}
    disagreed, compared = body.get("compared", (0.0, 0))
    return RolloutView(
        id=rollout.id,
        outcome=rollout.outcome,
        step=_step(now, rollout),
        deadline_left=_deadline_left(now, rollout),
        threshold=threshold,
        harm=_gates(body.get("e_values", {}), threshold),
        proof=_gates(body.get("proofs", {}), threshold),
        verdict=why.partition("\n")[0],
        agreement=1.0 - disagreed / compared if compared else None,
        compared=compared,
        psi=shadow.get("psi"),
    )


def _step(now: float, rollout: Rollout) -> StepView:
    progress, spec = rollout.progress, rollout.spec
    watched = progress.stage in WATCHED
    # A pause is no time at the step.
    until = now if progress.paused is None else progress.paused
    return StepView(
        phase=progress.phase,
        number=progress.step + 1,
        steps=len(spec.steps),
        seconds=max(0.0, until - progress.since),
        least_seconds=machine.least_seconds(progress.stage, spec) if watched else 0.0,
        requests=progress.step_requests,
        needed=machine.needed_requests(progress.stage, spec) if watched else 0,
    )


def _deadline_left(now: float, rollout: Rollout) -> float | None:
    progress = rollout.progress
    if progress.paused is not None or progress.stage not in WATCHED:
        return None
    return max(0.0, progress.started + rollout.spec.deadline_seconds - now)


def _gates(values: Mapping[str, float], threshold: float) -> tuple[GateView, ...]:
    return tuple(GateView(gate, e, _filled(e, threshold)) for gate, e in sorted(values.items()))


def _filled(value: float, threshold: float) -> float:
    return min(1.0, max(0.0, math.log(max(value, 1e-300)) / math.log(threshold)))
