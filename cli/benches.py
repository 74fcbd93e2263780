"""How measurements are shown, and how they are ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import CommandOutput

if TYPE_CHECKING:
    from loadtest.figures import Figures
    from loadtest.tuning import Tuned

_NONE = "-"


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it a polite end is an interrupt, so that no server is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def columns_of() -> tuple[str, ...]:
    """The columns of a table of figures."""
    return (
        "Load>", "answers/s>", "p50 ms>", "p95 ms>", "p99 ms>", "p99.9 ms>", "queue ms>",
        "infer ms>", "rows/batch>", "per CPU s>", "failed",
    )  # fmt: skip


def row_of(figures: Figures) -> tuple[str, ...]:
    """One line of that table."""
    load = f"{figures.rate:g}/s" if figures.rate is not None else f"{figures.clients}"
    times = (
        figures.p50_ms, figures.p95_ms, figures.p99_ms, figures.p999_ms, figures.queue_ms,
        figures.infer_ms,
    )  # fmt: skip
    return (
        load,
        f"{figures.per_second:,.0f}",
        *(_number(each, 3) for each in times),
        _number(figures.rows_per_batch, 1),
        _number(figures.per_cpu_second, 0),
        ", ".join(f"{name}: {count}" for name, count in figures.errors.items()) or _NONE,
    )


def show_tuning(output: CommandOutput, bento: str, tuned: Tuned, written: Path | None) -> None:
    """The trials of a search, the best settings, and where they were written."""
    if output.as_json:
        output.document({"bento": bento, **tuned.as_dict()})
        return
    names = tuple(tuned.environment)
    rows = [
        (*(trial.environment.get(name, _NONE) for name in names), *row_of(trial.best))
        for trial in tuned.trials
    ]
    columns = (*(f"{name.removeprefix('MLCTL_').lower()}>" for name in names), *columns_of())
    output.table(columns, rows, f"{bento}: p99 at most {tuned.max_p99_ms:g} ms")
    if not tuned.complete:
        output.note("The budget ended before the search: run it again, and it goes on.")
    if not tuned.fits:
        output.note("No settings reached the goal; these came nearest.")
    for line in tuned.environment_lines().splitlines():
        output.line(line)
    if written is not None:
        output.note(f"Written to {written}: set -a; . {written}; mlctl serve {bento}")


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"
