"""How the page of a deployment is drawn on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlctl.cli.output import printable
from mlctl.rollout.ui.view import GateRow, GateView, Page, RolloutPage

WIDEST = 110
_STYLES = {"blue": "blue", "green": "green"}
_OUTCOMES = {"promoted": "bold green", "restored": "bold green", "rolled_back": "bold red"}
_SHOWN_EVENTS = 4


def watch(console: Console, pages: Iterable[Page]) -> None:
    """Draw each page; the last picture stays."""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for page in pages:
            live.update(picture(page), refresh=True)


def picture(page: Page) -> RenderableType:
    """One picture, as wide as it may be."""
    bentos = " -> ".join(each.bento for each in page.slots)
    parts: list[RenderableType] = [_title(page), _text(bentos, "dim"), Text(), _shares(page)]
    if page.rollout is not None:
        rollout = page.rollout
        parts += [_numbers(page), Text(), _progress(rollout)]
        if rollout.answers:
            parts.append(_text(f"{'answers':<21} {rollout.answers}"))
        parts += _evidence(rollout)
        parts.append(_text(rollout.verdict, "bold" if rollout.outcome else ""))
        parts += [
            Text(),
            *(_text(line, "dim") for line in reversed(rollout.events[:_SHOWN_EVENTS])),
        ]
    return Constrain(Group(*parts), WIDEST)


def _title(page: Page) -> RenderableType:
    title = Text.assemble((page.name, "bold"), f"  {page.address}")
    rollout = page.rollout
    if rollout is None:
        title.append("  no rollout yet", "dim")
    else:
        title.append(f"  rollout {rollout.id} ")
        title.append(rollout.state, _OUTCOMES.get(rollout.outcome or "", "bold"))
    return title


def _shares(page: Page) -> Table:
    """The weights as bars."""
    table = _grid()
    for each in page.slots:
        bar = _bar(each.weight / 100, _STYLES[each.slot])
        name = Text(each.slot, _STYLES[each.slot])
        table.add_row(name.append(f" {each.part}", "dim"), bar, f"{each.weight} %")
    return table


def _numbers(page: Page) -> Table:
    """What each slot did; latencies are the histogram's edges, so they read "at most"."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, min_width=56, header_style="dim")
    for name in ("", "requests", "req/s", "p50 ms", "p99 ms", "errors"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for each in page.slots:
        table.add_row(Text(each.slot, _STYLES[each.slot]), *each.cells)
    return table


def _progress(rollout: RolloutPage) -> Table:
    """What the step still waits for."""
    step, table = rollout.step, _grid()
    if rollout.outcome is None and step.min_seconds:
        left = max(0.0, step.min_seconds - step.seconds)
        done = min(1.0, step.seconds / step.min_seconds)
        table.add_row("time", _bar(done, "cyan"), f"{_duration(left)} left")
    if rollout.outcome is None and step.needed:
        done = min(1.0, step.requests / step.needed)
        table.add_row("requests", _bar(done, "cyan"), f"{step.requests} of {step.needed}")
    if rollout.outcome is None and rollout.deadline_left is not None:
        table.add_row("deadline", Text(f"in {_duration(rollout.deadline_left)}"), "")
    return table


def _evidence(rollout: RolloutPage) -> list[RenderableType]:
    """Draw how near each e-value is to its threshold, on a logarithmic scale."""
    threshold, found = f"{rollout.threshold:g}", rollout.gates
    if not found:
        return []
    harm = _gate_rows(((each, each.harm) for each in found), "yellow", "red")
    proof = _gate_rows(((each, each.proof) for each in found), "cyan", "green")
    return [
        Text(f"evidence of harm (rolled back at {threshold})", "dim"),
        harm,
        Text(f"proof of the limits (promoted at {threshold})", "dim"),
        proof,
    ]


def _gate_rows(gates: Iterable[tuple[GateRow, GateView | None]], style: str, full: str) -> Table:
    table = _grid()
    for row, view in gates:
        if view is not None:
            bar = _bar(view.filled, full if view.filled >= 1.0 else style)
            value = f"{view.value:.2f}" if 0.005 <= view.value < 1e4 else f"{view.value:.0e}"
            table.add_row(row.gate, bar, value)
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, width=21)
    table.add_column(ratio=1, min_width=8)
    table.add_column(no_wrap=True, justify="right", width=13)
    return table


def _bar(done: float, style: str) -> ProgressBar:
    return ProgressBar(total=1.0, completed=done, complete_style=style, finished_style=style)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def _text(line: str, style: str = "") -> Text:
    return Text(printable(line), style, no_wrap=True, overflow="ellipsis")
