"""What the page of a deployment shows, as values made from the journal's records. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlctl.core.charts.shapes import Chart
from mlctl.rollout.client.rendering import event_line, verdict_text
from mlctl.rollout.daemon.reporting.series import Series, SeriesPoint
from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import GateEvidence
from mlctl.rollout.domain.machine.gate_table import GATES
from mlctl.rollout.domain.machine.state_machine import PAUSABLE, REVERSIBLE, WATCHED, RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.spec import Outcome, Revision, RolloutSpec, Slot
from mlctl.rollout.domain.statistics.verdict import Gate
from mlctl.rollout.drivers.listener import url_of
from mlctl.rollout.journal.records import ENDED, TICK, Deployment, JournalEvent, Rollout
from mlctl.rollout.ui.charts import Point, latency_chart, traffic_chart

_SHOWN_EVENTS = 20
_SHOWN_ROLLOUTS = 20
_MAX_POINTS = 400

COMMANDS = {
    "pause": OperatorCommand.PAUSE,
    "resume": OperatorCommand.RESUME,
    "rollback": OperatorCommand.ROLLBACK,
}
"""The commands of the page's buttons by their names."""


@dataclass(frozen=True, slots=True)
class GateView:
    """One e-value; `filled` is how far it has come to the threshold, by logarithms: 0 to 1."""

    value: float
    filled: float


@dataclass(frozen=True, slots=True)
class StepView:
    """How long a rollout is at its phase or step, and what it still waits for there."""

    seconds: float
    min_seconds: float
    requests: int
    needed: int


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link of the chain from model to traffic; `detail` is the whole digest, or empty."""

    kind: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One slot: its revision's chain, and its numbers as text; "-" for unknown ones."""

    slot: Slot
    part: str
    bento: str
    chain: tuple[ChainLink, ...]
    weight: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GateRow:
    """One gate: what was counted, and its evidence of harm and of the kept limit, if any."""

    gate: str
    counted: str
    harm: GateView | None
    proof: GateView | None


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """The rollout that is shown; `allowed` are the names of the commands that it can take now.

    Evidence of harm at `threshold` rolls it back, proof at it moves it on. `deadline_left` is in
    seconds, None while its clock stands still. `answers` says how the compared answers agree, empty
    without any.
    """

    id: int
    outcome: Outcome | None
    state: str
    verdict: str
    step: StepView
    deadline_left: float | None
    threshold: float
    answers: str
    charts: tuple[Chart, ...]
    gates: tuple[GateRow, ...]
    events: tuple[str, ...]
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that changes on the page of a deployment; `rollout` is None before the first."""

    name: str
    address: str
    up: bool
    slots: tuple[SlotRow, ...]
    rollouts: tuple[Rollout, ...]
    rollout: RolloutPage | None


class RolloutRecord:
    """The events of one rollout, folded in their order into what the page draws."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout.id
        self.seq = 0
        self.until = 0.0
        self.weights: list[Point] = [(0.0, 0.0)]
        self.points: list[SeriesPoint] = []
        self.lines: list[str] = []
        self.tick: JournalEvent | None = None
        self._begun = rollout.created
        self._series = Series(rollout)

    def add(self, events: Iterable[JournalEvent]) -> None:
        """Take the next events in."""
        for event in events:
            self.seq, self.until = event.seq, event.at - self._begun
            weight = event.body.get("weight")
            if weight is not None and weight != self.weights[-1][1]:
                self.weights.append((self.until, float(weight)))
            self._keep(self._series.add(event))
            if event.kind == TICK:
                self.tick = event
            elif line := event_line(event):
                self.lines.append(line)
            if event.kind == ENDED:
                self._keep(self._series.end())

    def line(self, name: str) -> list[Point]:
        """Return the values of one series; neighbours are left out where there are too many."""
        found = [(each.age, each.values[name]) for each in self.points if name in each.values]
        return found[:: math.ceil(len(found) / _MAX_POINTS) or 1]

    def newest(self, name: str) -> float | None:
        """Return the last value of one series; None if its last point has none."""
        return self.points[-1].values.get(name) if self.points else None

    def _keep(self, point: SeriesPoint | None) -> None:
        if point is not None:
            self.points.append(point)


def deployment_page(
    deployment: Deployment,
    rollouts: Sequence[Rollout],
    record: RolloutRecord | None,
    now: float,
) -> Page:
    """Return the page of `deployment` at `now` (wall clock).

    `rollouts` are all of the deployment, newest first; `record` is of the one that is shown.
    """
    cluster = deployment.settings.kubernetes
    shown = next((each for each in rollouts if record and each.id == record.rollout), None)
    slots = _slots_at_rest(deployment)
    if shown and record and (shown.outcome is None or deployment.split is None):
        slots = _slots(shown, record)
    return Page(
        name=deployment.name,
        address=cluster.where if cluster else url_of(deployment.ports, deployment.settings),
        up=deployment.up,
        slots=slots,
        rollouts=tuple(rollouts[:_SHOWN_ROLLOUTS]),
        rollout=_rollout_page(deployment, shown, record, now) if shown and record else None,
    )


def _rollout_page(
    deployment: Deployment, rollout: Rollout, record: RolloutRecord, now: float
) -> RolloutPage:
    until = record.until if rollout.outcome else max(record.until, now - rollout.created)
    latencies = {
        rollout.slot.other: record.line("live/p99_ms"),
        rollout.slot: record.line("candidate/p99_ms"),
    }
    traffic = traffic_chart(record.weights, until, rollout.slot)
    latency = latency_chart(latencies, rollout.spec.max_p99_ms, until)
    return RolloutPage(
        id=rollout.id,
        outcome=rollout.outcome,
        state=_state(rollout),
        verdict=_verdict(rollout, record),
        step=_step(now, rollout),
        deadline_left=_deadline_left(now, rollout),
        threshold=1.0 / rollout.spec.alpha,
        answers=_answers(record.tick.body if record.tick else {}),
        charts=(traffic,) if latency is None else (traffic, latency),
        # No gate judges the return to the previous version.
        gates=()
        if rollout.reverts is not None
        else tuple(gate_rows(rollout.progress.evidence, rollout.spec)),
        events=tuple(reversed(record.lines[-_SHOWN_EVENTS:])),
        allowed=allowed(deployment, rollout),
    )


def allowed(deployment: Deployment, rollout: Rollout) -> tuple[str, ...]:
    """Return the names of the commands that `rollout` can take now."""
    if not deployment.up:
        return ()
    if rollout.outcome is not None:
        previous = deployment.previous
        return ("rollback",) if previous and previous.promotion == rollout.id else ()
    phase = rollout.progress.phase
    if rollout.reverts is not None or phase not in REVERSIBLE:
        return ()
    names = ["resume"] if phase is RolloutPhase.PAUSED else ["pause"] if phase in PAUSABLE else []
    return (*names, "rollback")


def gate_rows(evidence: GateEvidence, spec: RolloutSpec) -> Iterator[GateRow]:
    """Yield a row for each gate that `spec` has a limit for, with what it counted."""
    threshold = math.log(1.0 / spec.alpha)
    harm, proof = evidence.log_values(spec), evidence.proof_values(spec)
    for gate in harm | proof:
        yield GateRow(
            gate.replace("_", " "),
            _counted(gate, evidence, spec),
            _gate_view(harm.get(gate), threshold),
            _gate_view(proof.get(gate), threshold),
        )


def _gate_view(log: float | None, threshold: float) -> GateView | None:
    if log is None:
        return None
    return GateView(math.exp(min(log, 700.0)), min(1.0, max(0.0, log / threshold)))


def _counted(gate: Gate, evidence: GateEvidence, spec: RolloutSpec) -> str:
    """Return "0.40 % of 753 requests failed (limit 1.00 %)"."""
    rule = GATES.get(gate)
    if rule is None:
        disagreed, compared = evidence.shadow.hits
        share = disagreed / compared if compared else 0.0
        return (
            f"{_percent(share)} of {compared:,} compared requests were answered differently "
            f"(limit {_percent(spec.max_disagreement or 0.0)})"
        )
    counted, limit = evidence.of(gate), rule.limit(spec) or 0.0
    sentence = rule.sentence((counted.ours.hits, counted.ours.n), spec)
    if not rule.versus_live:
        return f"{sentence} (limit {_percent(limit)})"
    return f"{sentence} (live slot {_percent(counted.theirs.share)})"


def _slots(rollout: Rollout, record: RolloutRecord) -> tuple[SlotRow, ...]:
    weight = int(record.weights[-1][1])
    name, counts = rollout.deployment, rollout.progress.evidence
    live = _cells(record, "live", counts.live.requests)
    candidate = _cells(record, "candidate", counts.candidate.requests)
    return (
        _slot_row(name, rollout.slot.other, "from", rollout.live, 100 - weight, live),
        _slot_row(name, rollout.slot, "to", rollout.candidate, weight, candidate),
    )


def _slots_at_rest(deployment: Deployment) -> tuple[SlotRow, ...]:
    """Return the live slot, and the other one while the traffic is split."""
    name, slot, split = deployment.name, deployment.slot, deployment.split
    other = 0 if split is None else split.percent
    live = _slot_row(name, slot, "live", deployment.live, (100 - other) * deployment.up)
    if split is None:
        return (live,)
    return live, _slot_row(name, slot.other, "split", split.revision, other)


def _slot_row(
    name: str,
    slot: Slot,
    part: str,
    revision: Revision,
    weight: int,
    cells: tuple[str, ...] = (),
) -> SlotRow:
    digest = revision.digest
    models = len(revision.digests)
    chain = (
        ChainLink("model", revision.source),
        ChainLink("variant", f"models:/{revision.model}/{revision.version}"),
        ChainLink("bundle" if models == 1 else f"{models} bundles", digest[:12], digest),
        ChainLink("Bento", revision.bento),
        ChainLink("deployment", f"{name}, {slot}"),
    )
    return SlotRow(slot, part, revision.bento, chain, weight, cells)


def _cells(record: RolloutRecord, side: str, requests: int) -> tuple[str, ...]:
    """Return requests judged, requests per second, p50, p99 and the share of errors."""
    rate = record.newest(f"{side}/requests_per_second")
    errors = record.newest(f"{side}/error_share")
    edges = (record.newest(f"{side}/{name}") for name in ("p50_ms", "p99_ms"))
    return (
        f"{requests:,}",
        "-" if rate is None else f"{rate:.0f}",
        *("-" if edge is None else f"≤ {edge:g}" for edge in edges),
        "-" if errors is None else _percent(errors),
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f} %"


def _answers(tick: Mapping[str, Any]) -> str:
    """Return "99.75 % of 400 compared requests agree, PSI 0.013"; empty without any."""
    disagreed, compared = tick.get("compared", (0.0, 0))
    if not compared:
        return ""
    psi = (tick.get("shadow") or {}).get("psi")
    drift = "" if psi is None else f", PSI {psi:.3f}"
    return f"{_percent(1.0 - disagreed / compared)} of {compared:,} compared requests agree{drift}"


def _state(rollout: Rollout) -> str:
    if rollout.outcome is not None:
        return rollout.outcome.replace("_", " ")
    progress = rollout.progress
    step = f", step {progress.step + 1} of {len(rollout.spec.steps)}" if progress.step >= 0 else ""
    return f"{progress.phase}{step}"


def _verdict(rollout: Rollout, record: RolloutRecord) -> str:
    """Return the verdict that ended the rollout, or the last tick's."""
    ruling = rollout.progress.ruling
    if ruling is not None:
        return verdict_text(asdict(ruling))
    return verdict_text(record.tick.body["verdict"]) if record.tick else ""


def _step(now: float, rollout: Rollout) -> StepView:
    progress, spec = rollout.progress, rollout.spec
    watched = progress.stage in WATCHED
    # A pause is no time at the step.
    until = now if progress.paused is None else progress.paused
    return StepView(
        seconds=max(0.0, until - progress.since),
        min_seconds=machine.min_seconds(progress.stage, spec) if watched else 0.0,
        requests=progress.step_requests,
        needed=machine.needed_requests(progress.stage, spec) if watched else 0,
    )


def _deadline_left(now: float, rollout: Rollout) -> float | None:
    progress = rollout.progress
    if progress.paused is not None or progress.stage not in WATCHED:
        return None
    return max(0.0, progress.started + rollout.spec.deadline_seconds - now)
