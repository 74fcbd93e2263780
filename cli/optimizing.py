"""What `mlctl optimize` shows while it works: a live table on a terminal, else a line a step."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bundle.clock import Clock, SystemClock
from cli.output import CommandOutput, printable
from cli.variants import NONE, NUMBERS, filled, number_cells

if TYPE_CHECKING:
    from rich.table import Table

    from optimize.events import ProgressListener, StepEvent
    from optimize.variant import Variant

_STEPS_BEFORE = ("resolve", "export")
_STEPS_AFTER = ("publish",)
_STYLES = {
    "waiting": "dim",
    "cached": "green",
    "finished": "green",
    "measured": "green",
    "failed": "red",
}


@dataclass(frozen=True, slots=True)
class Piecework:
    """Work in countable pieces: when it began, with how many done, and how many are done now."""

    what: str
    since: float
    first: int
    done: int
    total: int

    def left(self, now: float) -> float | None:
        """Seconds left if the rest goes as fast as what was seen; None before a piece is seen."""
        seen = self.done - self.first
        if seen <= 0:
            return None
        return (now - self.since) / seen * (self.total - self.done)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step or recipe of the table; `started` and `ended` in seconds of the clock."""

    name: str
    state: str = "waiting"
    started: float | None = None
    ended: float | None = None
    work: Piecework | None = None
    variant: Variant | None = None


class Board:
    """The table as a value that events change; it can be drawn at any time."""

    def __init__(self, recipes: Sequence[str], clock: Clock) -> None:
        names = (*_STEPS_BEFORE, *recipes, *_STEPS_AFTER)
        self._rows = {name: StepRow(name) for name in names}
        self._clock = clock

    def event(self, event: StepEvent) -> None:
        name = event.recipe or event.stage.value
        row = self._rows.get(name)
        if row is not None:
            self._rows[name] = self._changed(row, event)

    def cells(self) -> list[list[str]]:
        """The texts of every row: name, state, numbers, elapsed time."""
        now = self._clock.monotonic()
        return [
            [row.name, _state(row, now), *_numbers(row), _elapsed(row, now)]
            for row in self._rows.values()
        ]

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0))
        columns, rows = filled(("Step", "State", *NUMBERS, "Time>"), self.cells())
        for name in columns:
            table.add_column(
                name.rstrip(">"), justify="right" if name.endswith(">") else "left", no_wrap=True
            )
        for cells in rows:
            style = _STYLES.get(cells[1], "")
            texts = ("" if cell == NONE else printable(cell) for cell in cells)
            table.add_row(*map(Text, texts), style=style)
        return table

    def _changed(self, row: StepRow, event: StepEvent) -> StepRow:
        now = self._clock.monotonic()
        match event.status.value:
            case "started":
                return replace(row, state="building" if event.recipe else "working", started=now)
            case "working":
                return replace(row, work=self._piecework(row.work, event, now))
            case status:
                state = "measured" if status == "finished" and event.variant else status
                return replace(row, state=state, ended=now, work=None, variant=event.variant)

    def _piecework(self, before: Piecework | None, event: StepEvent, now: float) -> Piecework:
        if before is None or (before.what, before.total) != (event.detail, event.total):
            return Piecework(event.detail, now, event.done, event.done, event.total)
        return replace(before, done=event.done)


class Lines:
    """One line for each finished step."""

    def __init__(self, output: CommandOutput) -> None:
        self._output = output

    def event(self, event: StepEvent) -> None:
        if event.status.value in ("started", "working"):
            return
        detail = f": {event.detail}" if event.detail else ""
        self._output.note(f"  {event.recipe or event.stage.value} {event.status.value}{detail}")


@contextlib.contextmanager
def watching(output: CommandOutput, recipes: Sequence[str]) -> Iterator[ProgressListener]:
    """A progress that shows events as fits where the output goes; the table goes with the block."""
    if not output.live:
        yield Lines(output)
        return
    from rich.console import Console
    from rich.live import Live

    board = Board(recipes, SystemClock())
    # Libraries are silenced by replacing sys.stderr, which must not stop this table.
    console = Console(file=sys.stderr, highlight=False)
    with Live(board, console=console, refresh_per_second=4, transient=True):
        yield board


@contextlib.contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """What libraries and users' functions print to stdout goes to stderr while the block runs.

    Also what compiled code writes to the descriptor itself, past Python.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: `0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _state(row: StepRow, now: float) -> str:
    if row.work is None:
        return row.state
    left = row.work.left(now)
    remaining = "" if left is None else f", {duration(left)} left"
    return f"{row.work.what} {row.work.done}/{row.work.total}{remaining}"


def _numbers(row: StepRow) -> tuple[str, ...]:
    measured = None if row.variant is None else row.variant.measured
    return number_cells(None if measured is None else measured.record())


def _elapsed(row: StepRow, now: float) -> str:
    if row.started is None:
        return NONE
    return duration((now if row.ended is None else row.ended) - row.started)
