"""What `mlctl batch` shows while it works: a moving line, plain lines, or a JSON line an event."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from bundle.errors import ErrorCode, MlctlError
from cli.optimizing import duration, only_results_on_stdout
from cli.output import CommandOutput

if TYPE_CHECKING:
    from services.batch.engine import BatchEvent
    from services.batch.job import BatchReport

# Plain lines come at most that often, in seconds.
_PERIOD = 10.0


@contextlib.contextmanager
def watching(output: CommandOutput) -> Iterator[Callable[[BatchEvent], None]]:
    """Something that shows events as fits where the output goes.

    What a transform prints goes to stderr, so that it cannot get among the events.
    """
    if output.as_json:
        with os.fdopen(os.dup(1), "w") as stream, only_results_on_stdout():
            yield lambda event: _event_line(event, stream)
        return
    with only_results_on_stdout(), output.working() as show:
        last = -_PERIOD

        def watch(event: BatchEvent) -> None:
            nonlocal last
            show(told(event))
            due = not output.live and event.seconds - last >= _PERIOD
            if event.phase == "paused" or due:
                last = event.seconds
                output.note(told(event))

        yield watch


def told(event: BatchEvent) -> str:
    """One line: how far it is, how fast, how long still, what went wrong."""
    if event.phase == "paused":
        return f"Paused: {event.detail}"
    seen = event.totals.seen
    of = "" if event.total is None else f" of {event.total:,} ({_share(seen, event.total)})"
    rate = event.rows / event.seconds if event.seconds > 0 else 0.0
    parts = [f"{seen:,}{of} rows"]
    if event.rows:
        parts.append(f"{rate:,.0f} rows/s")
    if event.rows and event.total is not None:
        parts.append(f"{duration((event.total - seen) / rate)} left")
    parts.append(f"{event.totals.bad:,} bad")
    return ", ".join(parts)


@contextlib.contextmanager
def stopping(output: CommandOutput) -> Iterator[threading.Event]:
    """An event that Ctrl-C or a polite end sets; the second time ends at once."""
    stop = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        output.aside("Stopping after the units in progress; press Ctrl-C again to stop at once.")

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt:
        _leave(output)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(output: CommandOutput) -> NoReturn:
    """End the process now: a usual exit would wait for the threads that still score."""
    try:
        output.fail(MlctlError(ErrorCode.INTERRUPTED, "interrupted"))
    except click.exceptions.Exit as left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.exit_code)


def json_line(document: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print one JSON document on a line of its own: a job tells many."""
    click.echo(json.dumps(document, ensure_ascii=False, allow_nan=False), stream)


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` options by name; INVALID_INPUT for another form."""
    found = [text.partition("=") for text in texts]
    if wrong := next((name for name, separator, _value in found if not separator), None):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"--option {wrong}: write it as NAME=VALUE")
    return {name: value for name, _separator, value in found}


def require_no_options(what: str, given: Mapping[str, object]) -> None:
    """Raise INVALID_INPUT for an option that `what` does not take."""
    if name := next((name for name, value in given.items() if value is not None), None):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{name} does not go with {what}")


def show_report(output: CommandOutput, report: BatchReport, target: str) -> None:
    """Print the result of a run."""
    from services.batch.locations import scheme_of
    from services.batch.storage import BUCKET_SCHEMES

    if output.as_json:
        json_line({"event": "summary", **report.as_dict(), "out": target})
        return
    totals = report.totals
    if not report.rows:
        output.line(f"Nothing to do: {target} has all {totals.rows:,} answers")
    else:
        rate = report.rows / max(report.seconds, 1e-9)
        took = f"{report.rows:,} rows in {duration(report.seconds)}, {rate:,.0f} rows/s"
        output.line(f"{target} has {totals.rows:,} answers ({took})")
    if totals.skipped:
        output.line(f"{totals.skipped:,} rows were left out by the filter")
    if totals.bad:
        output.line(f"{totals.bad:,} bad rows are in quarantine")
        if scheme_of(target) in (None, "file", *BUCKET_SCHEMES):
            folder = target.rstrip("/")
            output.note(
                f"With a fixed model: mlctl batch run NEW --in {folder}/_mlctl/quarantine "
                f"--out {folder}/redrive"
            )


def _event_line(event: BatchEvent, stream: TextIO) -> None:
    document = {
        "event": event.phase.value,
        "rows": event.totals.seen,
        "total": event.total,
        "bad": event.totals.bad,
        "run_rows": event.rows,
        "seconds": round(event.seconds, 3),
    }
    if event.detail:
        document["detail"] = event.detail
    json_line(document, stream)


def _share(seen: int, total: int) -> str:
    return f"{100 * seen / total:.0f} %" if total else "100 %"
