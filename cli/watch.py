"""How the live picture of a deployment is drawn."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.output import printable
from rollout.client.rendering import event_line

if TYPE_CHECKING:
    from rollout.client.live_state import LiveView
    from rollout.client.view import GateView, RolloutView, ScreenState, SlotView
    from rollout.journal.records import JournalEvent

REDRAW_SECONDS = 0.5
WIDEST = 110
_STYLES = {"blue": "blue", "green": "green"}
_OUTCOMES = {"promoted": "bold green", "restored": "bold green", "rolled_back": "bold red"}
_NEAR = 0.5
# A candidate that was promoted is live, and what was live before is the former.
_ORDER = ("former", "live", "candidate")


def watch(console: Console, view: LiveView) -> None:
    """Draw until the rollout that is seen ends, or for ever; the last picture stays."""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            state = view.observe()
            live.update(picture(state, view.events), refresh=True)
            if state.rollout is not None and state.rollout.outcome is not None:
                return
            time.sleep(REDRAW_SECONDS)


def picture(state: ScreenState, events: Iterable[JournalEvent] = ()) -> RenderableType:
    """One picture, as wide as it may be."""
    bentos = " -> ".join(each.bento for each in _from_to(state))
    parts: list[RenderableType] = [_title(state), _text(bentos, "dim"), Text()]
    parts += [_shares(state), _numbers(state)]
    if state.rollout is not None:
        parts += [Text(), *_progress(state.rollout), *_evidence(state.rollout)]
        parts.append(_now(state.rollout))
    lines = [_text(line, "dim") for event in events if (line := event_line(event))]
    if lines:
        parts += [Text(), *lines]
    return Constrain(Group(*parts), WIDEST)


def _title(state: ScreenState) -> RenderableType:
    title = Text.assemble((state.name, "bold"), f"  {state.address}")
    rollout = state.rollout
    if not state.answers:
        title.append("  the proxy does not answer", "bold red")
    elif rollout is None:
        title.append("  no rollout is under way", "dim")
    else:
        ended = rollout.outcome.value if rollout.outcome else None
        style = _OUTCOMES.get(ended, "bold yellow") if ended else "bold"
        title.append(f"  rollout {rollout.id} ")
        title.append((ended or _where(rollout)).replace("_", " "), style)
    return title


def _from_to(state: ScreenState) -> list[SlotView]:
    """The slots in the direction in which the traffic is to move."""
    return sorted(state.slots, key=lambda each: _ORDER.index(each.part))


def _where(rollout: RolloutView) -> str:
    step = rollout.step
    at_step = f" step {step.number} of {step.steps}" if step.number else ""
    return f"{step.phase.value}{at_step}"


def _shares(state: ScreenState) -> Table:
    """The weights as bars."""
    table = _grid()
    for each in state.slots:
        weight = each.weight or 0
        share = "?" if each.weight is None else f"{each.weight} %"
        bar = _bar(weight / 100, _STYLES[each.slot.value])
        name = Text(each.slot.value, _STYLES[each.slot.value])
        table.add_row(name.append(f" {each.part}", "dim"), bar, share)
    return table


def _numbers(state: ScreenState) -> Table:
    """What each slot does; latencies are the histogram's edges, so they read "at most"."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, min_width=56, header_style="dim")
    for name in ("", "req/s", "p50 ms", "p99 ms", "errors", "run"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for each in state.slots:
        table.add_row(Text(each.slot.value, _STYLES[each.slot.value]), *_cells(each))
    return table


def _cells(each: SlotView) -> list[Text]:
    errors = each.error_share
    failing = "red" if errors else ""
    running = Text(str(each.replicas), "" if each.healthy else "red")
    return [
        Text("-" if each.rate is None else f"{each.rate:.0f}"),
        *(Text("-" if edge is None else f"<= {edge:g}") for edge in (each.p50, each.p99)),
        Text("-" if errors is None else f"{errors:.2%}", failing),
        running,
    ]


def _progress(rollout: RolloutView) -> list[RenderableType]:
    """What the step still waits for, and how the answers compare."""
    step, table = rollout.step, _grid()
    if rollout.outcome is None and step.least_seconds:
        left = max(0.0, step.least_seconds - step.seconds)
        done = _share(step.seconds, step.least_seconds)
        table.add_row("time", _bar(done, "cyan"), f"{_duration(left)} left")
    if rollout.outcome is None and step.needed:
        done = _share(step.requests, step.needed)
        table.add_row("requests", _bar(done, "cyan"), f"{step.requests} of {step.needed}")
    if rollout.outcome is None and rollout.deadline_left is not None:
        table.add_row("deadline", Text(f"in {_duration(rollout.deadline_left)}"), "")
    if rollout.agreement is None:
        return [table]
    psi = "" if rollout.psi is None else f", PSI {rollout.psi:.3f}"
    answers = f"{rollout.agreement:.2%} of {rollout.compared} alike{psi}"
    return [table, _text(f"{'answers':<21} {answers}")]


def _evidence(rollout: RolloutView) -> list[RenderableType]:
    """Draw how near each e-value is to its threshold, on a logarithmic scale."""
    parts: list[RenderableType] = []
    for gates, title, harm in (
        (rollout.harm, f"against it (taken back at {rollout.threshold:g})", True),
        (rollout.proof, f"for it (goes on at {rollout.threshold:g})", False),
    ):
        if gates:
            parts += [Text(title, "dim"), _gate_rows(gates, harm=harm)]
    return parts


def _gate_rows(gates: Iterable[GateView], *, harm: bool) -> Table:
    table = _grid()
    for gate in gates:
        table.add_row(gate.gate, _bar(gate.filled, _style(gate, harm=harm)), _e_text(gate.value))
    return table


def _style(gate: GateView, *, harm: bool) -> str:
    if harm:
        return "red" if gate.filled >= 1.0 else "yellow" if gate.filled > _NEAR else "green"
    return "green" if gate.filled >= 1.0 else "cyan"


def _e_text(value: float) -> str:
    return f"{value:.2f}" if 0.005 <= value < 1e4 else f"{value:.0e}"


def _now(rollout: RolloutView) -> Text:
    return _text(rollout.verdict, "bold" if rollout.outcome else "")


def _grid() -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, width=21)
    table.add_column(ratio=1, min_width=8)
    table.add_column(no_wrap=True, justify="right", width=13)
    return table


def _bar(done: float, style: str) -> ProgressBar:
    return ProgressBar(total=1.0, completed=done, complete_style=style, finished_style=style)


def _share(done: float, of: float) -> float:
    return min(1.0, done / of)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def _text(line: str, style: str = "") -> Text:
    return Text(printable(line), style, no_wrap=True, overflow="ellipsis")
