"""What the live picture of a deployment shows, as values. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout.domain import state_machine as machine
from rollout.domain.counts import Totals
from rollout.domain.latency_edges import quantile_edge, sparse
from rollout.domain.spec import Outcome, Slot
from rollout.domain.state_machine import WATCHED, RolloutPhase
from rollout.drivers.listener import url_of
from rollout.journal.records import Deployment, JournalEvent, Rollout


@dataclass(frozen=True, slots=True)
class Flow:
    """What one slot answered in the last `seconds`, counted at `edges` in milliseconds."""

    totals: Totals
    seconds: float
    edges: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a deployment at `now` (wall clock).

    `weights`, `healthy` and `flows` are what the proxy reports, empty if it does not answer.
    `replicas` is how many run per slot. `tick` is the last tick of `rollout`.
    """

    now: float
    deployment: Deployment
    weights: Mapping[Slot, int] = field(default_factory=dict)
    healthy: Mapping[Slot, bool] = field(default_factory=dict)
    flows: Mapping[Slot, Flow] = field(default_factory=dict)
    replicas: Mapping[Slot, int] = field(default_factory=dict)
    rollout: Rollout | None = None
    tick: JournalEvent | None = None


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot now. `rate` is in requests a second, the latencies in milliseconds, at most.

    Values that are unknown, or of too few requests, are None.
    """

    slot: Slot
    part: str
    bento: str
    weight: int | None
    healthy: bool | None
    replicas: int
    rate: float | None
    p50: float | None
    p99: float | None
    error_share: float | None


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


@dataclass(frozen=True, slots=True)
class ScreenState:
    """One picture; the live slot comes first."""

    name: str
    address: str
    answers: bool
    slots: tuple[SlotView, ...]
    rollout: RolloutView | None


def screen(seen: Snapshot) -> ScreenState:
    """The picture of `seen`."""
    deployment = seen.deployment
    live = deployment.slot
    both = seen.rollout is not None or deployment.split is not None
    shown = [live, live.other] if both else [live]
    return ScreenState(
        name=deployment.name,
        address=_address(deployment),
        answers=bool(seen.weights),
        slots=tuple(_slot(seen, slot) for slot in shown),
        rollout=None if seen.rollout is None else rollout_view(seen.now, seen.rollout, seen.tick),
    )


def _address(deployment: Deployment) -> str:
    if deployment.settings.kubernetes is not None:
        return deployment.settings.kubernetes.where
    return url_of(deployment.ports, deployment.settings)


def _slot(seen: Snapshot, slot: Slot) -> SlotView:
    flow, rollout = seen.flows.get(slot), seen.rollout
    part, revision = "live", seen.deployment.live
    split = seen.deployment.split
    if slot is not seen.deployment.slot and rollout is None and split is not None:
        part, revision = "split", split.revision
    elif slot is not seen.deployment.slot and rollout is not None:
        ours = slot is rollout.slot
        part, revision = ("candidate", rollout.candidate) if ours else ("former", rollout.live)
    totals = flow.totals if flow else Totals()
    counts = {
        math.inf if edge is None else edge: n
        for edge, n in sparse(totals, flow.edges if flow else ())
    }
    return SlotView(
        slot=slot,
        part=part,
        bento=revision.bento,
        weight=seen.weights.get(slot),
        healthy=seen.healthy.get(slot),
        replicas=seen.replicas.get(slot, 0),
        rate=totals.requests / flow.seconds if flow else None,
        p50=quantile_edge(counts, 0.5),
        p99=quantile_edge(counts, 0.99),
        error_share=totals.errors / totals.requests if totals.requests else None,
    )


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
