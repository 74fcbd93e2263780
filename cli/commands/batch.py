"""`mlctl batch`: score tables with the model of a Bento, each row exactly once."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from bundle.errors import ErrorCode, MlctlError
from cli.options import Duration, add_options, parse_options
from cli.output import CommandOutput, counted, reporting
from cli.progress import clock_time, json_line, only_results_on_stdout, stopping

if TYPE_CHECKING:
    from services.batch.estimate import CostEstimate
    from services.batch.job import BatchReport
    from services.batch.run import BatchEvent

# Seconds between progress lines where no terminal shows a moving one.
_PERIOD = 10.0

_INPUT = (
    click.option(
        "--in",
        "source",
        required=True,
        metavar="PATH|URL",
        help="Rows to score: a file, folder, glob or URL.",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN[,COLUMN...]",
        help="Columns that feed a model input; 'INPUT=GLOB*' takes all matching columns.",
    ),
    click.option("--filter", "condition", help='Score only matching rows: "age >= 18".'),
    click.option("--forbid-nan", is_flag=True, help="Reject rows with a NaN in an input."),
)

_KEEP = click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN[,COLUMN...]",
    help="Input columns to copy to the answers; '*' for all of them.",
)

_FORMAT_OPTION = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of one input or output format; see docs/batch.md.",
)

_OUTPUT = (
    click.option(
        "--out",
        "target",
        required=True,
        metavar="PATH|URL",
        help="Where answers go: a folder, or the URL of a bucket or a table.",
    ),
    _KEEP,
    click.option(
        "--partition-by",
        multiple=True,
        metavar="COLUMN[,COLUMN...]",
        help="Write one folder per value of these columns.",
    ),
    click.option("--format", "form", help="Format of the files in --out.  [default: parquet]"),
    _FORMAT_OPTION,
    click.option(
        "--finite-outputs", is_flag=True, help="Reject rows with a NaN or infinite answer."
    ),
    click.option(
        "--max-errors",
        default="1%",
        show_default=True,
        metavar="N|P%",
        help="Maximum number or share of rejected rows; above it the job ends with exit code 14.",
    ),
    click.option(
        "--restart", is_flag=True, help="Delete what the previous job wrote, and start again."
    ),
)

_SIZES = (
    click.option(
        "--unit-rows",
        type=click.IntRange(1),
        help="Minimum rows in a unit: row groups of a file are joined.  [default: 100000]",
    ),
    click.option(
        "--batch-rows",
        type=click.IntRange(1),
        help="Rows in one call of the model.  [default: by the model's size]",
    ),
)

_EXECUTOR = (
    click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Score with threads of this process or with actors of a Ray cluster.",
    ),
    click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="The Ray cluster: ray://HOST:10001, HOST:6379, auto.  [default: one started here]",
    ),
    click.option(
        "--ray-actors",
        type=click.IntRange(1),
        help="Number of scoring actors.  [default: one per core, or per GPU]",
    ),
)

_THREADS = click.option(
    "--threads", type=click.IntRange(1), help="Number of scoring threads.  [default: all cores]"
)

_WORK = (
    _THREADS,
    click.option(
        "--patience",
        type=Duration(),
        default="5m",
        show_default=True,
        help="How long to wait for a full disk or a lost connection.",
    ),
    click.option(
        "--grace",
        type=Duration(),
        default="20s",
        show_default=True,
        help="How long units in progress may take after SIGTERM before they are abandoned.",
    ),
)

_SAMPLE = (
    click.option(
        "--duration",
        "seconds",
        type=Duration("100ms", "1h"),
        default="10s",
        show_default=True,
        help="How long to measure.",
    ),
    click.option(
        "--hour-price",
        type=click.FloatRange(0, min_open=True),
        help="Price of one core, or of the GPU that the model runs on, for an hour; adds the cost.",
    ),
)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options((*_INPUT, *_OUTPUT, *_SIZES, *_EXECUTOR, *_WORK), command)


def _estimate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options((*_INPUT, _KEEP, _FORMAT_OPTION, *_SAMPLE, *_SIZES, _THREADS), command)


@click.group()
def batch() -> None:
    """Score tables with a Bento's model, each row exactly once."""


@batch.command()
@click.argument("bento")
@_run_options
@reporting(json_lines=True)
def run(
    output: CommandOutput,
    /,
    bento: str,
    source: str,
    target: str,
    unit_rows: int | None,
    **given: Any,
) -> None:
    """Score the rows of --in with BENTO (a tag, or a bundle's folder) into --out.

    Run the same command again to resume a job that was stopped or killed; a finished job is not
    repeated. Rejected rows go to a quarantine with the reason: a table that another run, with a
    corrected model, takes as its --in.

    \b
    Example:
      mlctl batch run digits --in rows.parquet --out scores/ --keep id
    """
    from services.batch.job import UNIT_ROWS, BatchConfig, column_list, run_job
    from services.batch.local_executor import local_executor
    from services.batch.locations import without_password
    from services.batch.run import ErrorLimit, RunControl
    from services.batch.sinks import open_sink, part_format
    from services.batch.sources import open_source
    from services.runtime.scorable import find_scorable

    output.warn_unknown_variables()
    limit = ErrorLimit.parse(given["max_errors"])
    options = parse_options(given["options"])
    if given["executor"] == "ray":
        _require_unset("--executor ray", {"--threads": given["threads"]})
        from services.batch.ray_executor import ray_executor

        executor = ray_executor(given["ray_address"], given["ray_actors"])
    else:
        ray_options = {"--ray-address": given["ray_address"], "--ray-actors": given["ray_actors"]}
        _require_unset("--executor local", ray_options)
        executor = local_executor(given["threads"])
    model = find_scorable(bento)
    config = BatchConfig(
        map=given["mapped"],
        keep=column_list(given["keep"]),
        filter=given["condition"],
        partition_by=column_list(given["partition_by"]),
        format=given["form"] or part_format(target),
        unit_rows=unit_rows or UNIT_ROWS,
        forbid_nan=given["forbid_nan"],
        finite_outputs=given["finite_outputs"],
    )
    rows = open_source(source, config.unit_rows, options)
    sink = open_sink(target, config.format, options)
    with stopping(output) as stop, _progress(output) as watch:
        control = RunControl(
            limit, given["patience"], given["grace"], watch, stop, given["restart"]
        )
        report = run_job(model, rows, sink, config, executor, control, given["batch_rows"])
    _show_report(output, report, without_password(target))


def _require_unset(what: str, given: Mapping[str, object]) -> None:
    """Raise INVALID_INPUT for an option that `what` does not take."""
    if name := next((name for name, value in given.items() if value is not None), None):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{name} does not go with {what}")


@batch.command()
@click.argument("bento")
@_estimate_options
@reporting
def estimate(
    output: CommandOutput, /, bento: str, source: str, unit_rows: int | None, **given: Any
) -> None:
    """Predict how long scoring the rows of --in with BENTO takes, and what it costs.

    Scores random units for about --duration into a temporary folder, and assumes that the other
    rows take as long.
    """
    from services.batch.estimate import estimate as predict
    from services.batch.job import UNIT_ROWS, BatchConfig, column_list
    from services.batch.sources import open_source
    from services.runtime.scorable import find_scorable

    output.warn_unknown_variables()
    model = find_scorable(bento)
    config = BatchConfig(
        map=given["mapped"],
        keep=column_list(given["keep"]),
        filter=given["condition"],
        unit_rows=unit_rows or UNIT_ROWS,
        forbid_nan=given["forbid_nan"],
    )
    rows = open_source(source, config.unit_rows, parse_options(given["options"]))
    price, seconds = given["hour_price"], given["seconds"]
    with output.working() as show, only_results_on_stdout():
        show("Scoring a sample ...")
        found = predict(model, rows, config, price, seconds, given["threads"], given["batch_rows"])
    if output.as_json:
        output.document({"digest": model.digest, **found.as_dict()})
    else:
        _show_estimate(output, found)


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
        took = f"{report.rows:,} rows in {clock_time(report.seconds)}, {rate:,.0f} rows/s"
        output.line(f"{target} has {totals.rows:,} answers ({took})")
    if totals.skipped:
        output.line(f"{totals.skipped:,} rows were left out by --filter")
    if totals.bad:
        output.line(f"{totals.bad:,} rejected rows are in quarantine")
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


def _show_estimate(output: CommandOutput, found: CostEstimate) -> None:
    rows, units = counted(found.rows, "row"), counted(found.units, "unit")
    output.line(f"Sample: {rows} in {units}, {found.bad:,} rejected")
    output.line(
        f"{three_digits(found.million_seconds)} ± {three_digits(found.spread)} "
        f"{found.resource}-seconds per million rows (± is the spread between units), "
        f"after {found.open_seconds:.1f} s to open the model"
    )
    if found.job_seconds is not None and found.job_hours is not None:
        output.line(
            f"All {found.total_rows:,} rows: {three_digits(found.job_hours)} "
            f"{found.resource}-hours, {clock_time(found.job_seconds)} with "
            f"{counted(found.parallel, found.resource)}"
        )
    if found.million_cost is not None:
        whole = "" if found.job_cost is None else f"; of all rows: {three_digits(found.job_cost)}"
        output.line(f"Cost of a million rows: {three_digits(found.million_cost)}{whole}")
    output.note("Answers were written to a local temporary folder; another --out may be slower.")


def three_digits(value: float) -> str:
    """Return `value` with three significant digits and no exponent: 1,750 and 0.0000126."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _percent(done: int, total: int) -> str:
    return f"{100 * done / total:.0f} %" if total else "100 %"
