"""A batch run of a model: what `mlctl batch run` and an image's `batch` do with their options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from mlctl.cli.options import parse_options
from mlctl.cli.output import CommandOutput
from mlctl.cli.progress import clock_time, json_line, only_results_on_stdout, stopping
from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.cli.runners.batch_options import BatchOptions
    from mlctl.services.batch.job import BatchReport, Executor
    from mlctl.services.batch.progress import BatchEvent
    from mlctl.services.generate.options import AnswerOptions
    from mlctl.services.layout.scorable import Scorable

# Seconds between progress lines where no terminal shows a moving one.
_PERIOD = 10.0


def run_batch(output: CommandOutput, find: Callable[[], Scorable], options: BatchOptions) -> None:
    """Score the rows of --in into --out with the model that `find` returns."""
    from mlctl.services.batch.job import BatchConfig, column_list, run_job
    from mlctl.services.batch.locations import without_password
    from mlctl.services.batch.progress import ErrorLimit, RunControl
    from mlctl.services.batch.sinks import open_sink, part_format
    from mlctl.services.batch.sources import open_source

    limit = ErrorLimit.parse(options.max_errors)
    settings = parse_options(options.settings)
    executor = _executor(options)
    model = find()
    config = BatchConfig(
        map=options.map,
        keep=column_list(options.keep),
        filter=options.filter,
        partition_by=column_list(options.partition_by),
        format=options.format or part_format(options.target),
        unit_rows=options.unit_rows,
        forbid_nan=options.forbid_nan,
        finite_outputs=options.finite_outputs,
        answers=_answers(options),
    )
    rows = open_source(options.source, config.unit_rows, settings)
    sink = open_sink(options.target, config.format, settings)
    with stopping(output) as stop, _progress(output) as watch:
        control = RunControl(
            limit, options.patience, options.grace, watch, stop, restart=options.restart
        )
        report = run_job(model, rows, sink, config, executor, control, options.batch_rows)
    _show_report(output, report, without_password(options.target))


def _executor(options: BatchOptions) -> Executor:
    from mlctl.services.batch.local_executor import local_executor

    ray_options = {"--ray-address": options.ray_address, "--ray-actors": options.ray_actors}
    wrong = ray_options if options.executor == "local" else {"--threads": options.threads}
    if name := next((name for name, value in wrong.items() if value is not None), None):
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{name} does not go with --executor {options.executor}"
        )
    if options.executor == "local":
        return local_executor(options.threads)
    from mlctl.services.batch.ray_executor import ray_executor

    return ray_executor(options.ray_address, options.ray_actors)


def _answers(options: BatchOptions) -> AnswerOptions | None:
    """Return how a language model answers; None if no option says so."""
    from mlctl.services.generate.options import AnswerOptions

    named = ("max_tokens", "temperature", "seed")
    chosen = {name: value for name in named if (value := getattr(options, name)) is not None}
    return AnswerOptions(**chosen) if chosen else None


@contextlib.contextmanager
def _progress(output: CommandOutput) -> Iterator[Callable[[BatchEvent], None]]:
    """Yield a function that shows events: a moving line, plain lines, or a JSON line each."""
    if output.as_json:
        with os.fdopen(os.dup(1), "w") as stream, only_results_on_stdout():
            yield lambda event: _print_event(event, stream)
        return
    with only_results_on_stdout(), output.working() as show:
        last = -_PERIOD

        def watch(event: BatchEvent) -> None:
            nonlocal last
            show(describe(event))
            due = not output.live and event.seconds - last >= _PERIOD
            if event.phase == "paused" or due:
                last = event.seconds
                output.note(describe(event))

        yield watch


def describe(event: BatchEvent) -> str:
    """Return one line of progress: rows done, rate, time left and rejected rows."""
    if event.phase == "paused":
        return f"Paused: {event.detail}"
    done = event.totals.seen
    of = "" if event.total is None else f" of {event.total:,} ({_percent(done, event.total)})"
    rate = event.rows / event.seconds if event.seconds > 0 else 0.0
    parts = [f"{done:,}{of} rows"]
    if event.rows:
        parts.append(f"{rate:,.0f} rows/s")
    if event.rows and event.total is not None:
        parts.append(f"{clock_time((event.total - done) / rate)} left")
    parts.append(f"{event.totals.bad:,} rejected")
    return ", ".join(parts)


def _show_report(output: CommandOutput, report: BatchReport, target: str) -> None:
    from mlctl.services.batch.locations import scheme_of
    from mlctl.services.batch.storage import BUCKET_SCHEMES

    if output.as_json:
        json_line({"event": "summary", **report.as_dict(), "out": target})
        return
    totals = report.totals
    if not report.rows:
        output.line(f"Nothing to do: {target} has all {totals.rows:,} answers")
    else:
        rate = report.rows / max(report.seconds, 1e-9)
        took = f"{report.rows:,} rows in {clock_time(report.seconds)}, {rate:,.0f} rows/s"
        output.line(f"{target} has {totals.rows:,} answers ({took})")
    if totals.skipped:
        output.line(f"{totals.skipped:,} rows were left out by --filter")
    if totals.bad:
        output.line(f"Rejected rows in quarantine: {totals.bad:,}")
        if scheme_of(target) in (None, "file", *BUCKET_SCHEMES):
            folder = target.rstrip("/")
            output.note(
                f"With a corrected model: mlctl batch run NEW --in {folder}/_mlctl/quarantine "
                f"--out {folder}/redrive"
            )


def _print_event(event: BatchEvent, stream: TextIO) -> None:
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


def _percent(done: int, total: int) -> str:
    return f"{100 * done / total:.0f} %" if total else "100 %"
