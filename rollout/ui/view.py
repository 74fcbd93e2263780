"""What the page of a deployment shows, as values made from the journal's records. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from optimize.charts.shapes import Chart
from rollout.client.rendering import event_line, verdict_text
from rollout.client.view import GateView, RolloutView, rollout_view
from rollout.daemon.reporting.series import Series, SeriesPoint
from rollout.domain.batch_traffic import TrafficHour, batch_hint
from rollout.domain.evidence import GateEvidence
from rollout.domain.gate_table import GATES
from rollout.domain.operator_commands import OperatorCommand
from rollout.domain.spec import Revision, RolloutSpec, Slot
from rollout.domain.state_machine import PAUSABLE, REVERSIBLE, RolloutPhase
from rollout.domain.verdict import Gate
from rollout.drivers.listener import url_of
from rollout.journal.records import ENDED, TICK, Deployment, JournalEvent, Rollout
from rollout.ui.charts import Point, latency_chart, traffic_chart

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
    """The rollout that is shown; `allowed` are the names of the commands that it can take now."""

    id: int
    state: str
    verdict: str
    view: RolloutView
    charts: tuple[Chart, ...]
    gates: tuple[GateRow, ...]
    events: tuple[str, ...]
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that changes on the page of a deployment; `rollout` is None before the first.

    `hint` is a sentence about its traffic, or empty.
    """

    name: str
    address: str
    up: bool
    hint: str
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
    traffic: Sequence[TrafficHour] = (),
) -> Page:
    """Return the page of `deployment` at `now` (wall clock).

    `rollouts` are all of the deployment, newest first; `record` is of the one that is shown;
    `traffic` are its last days.
    """
    hint = batch_hint(traffic)
    cluster = deployment.settings.kubernetes
    shown = next((each for each in rollouts if record and each.id == record.rollout), None)
    if shown is None or record is None:
        weight = 100 if deployment.up else 0
        slots: tuple[SlotRow, ...] = (
            _slot_row(deployment.name, deployment.slot, "live", deployment.live, weight),
        )
    else:
        slots = _slots(shown, record)
    return Page(
        name=deployment.name,
        address=cluster.where if cluster else url_of(deployment.ports, deployment.settings),
        up=deployment.up,
        hint="" if hint is None else hint.sentence(),
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
    view = rollout_view(now, rollout, record.tick)
    traffic = traffic_chart(record.weights, until, rollout.slot)
    latency = latency_chart(latencies, rollout.spec.max_p99_ms, until)
    return RolloutPage(
        id=rollout.id,
        state=_state(rollout),
        verdict=_verdict(rollout, record),
        view=view,
        charts=(traffic,) if latency is None else (traffic, latency),
        # No gate judges the return to the previous version.
        gates=()
        if rollout.reverts is not None
        else tuple(gate_rows(view, rollout.progress.evidence, rollout.spec)),
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


def gate_rows(view: RolloutView, evidence: GateEvidence, spec: RolloutSpec) -> Iterator[GateRow]:
    """Yield a row for each gate of the last tick, with what it counted."""
    harm, proof = ({each.gate: each for each in views} for views in (view.harm, view.proof))
    for gate in (each for each in Gate if each in harm or each in proof):
        counted = _counted(gate, evidence, spec)
        yield GateRow(gate.replace("_", " "), counted, harm.get(gate), proof.get(gate))


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
    return SlotRow(slot, part, chain, weight, cells)


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
