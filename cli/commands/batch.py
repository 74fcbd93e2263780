"""`mlctl batch`: score tables with the model of a Bento, each row exactly once."""

from __future__ import annotations

from typing import Any

import click

from cli.batch_options import run_options, work_options
from cli.batches import json_line, pairs, show_report, stopping, watching
from cli.commands.batch_estimate import estimate
from cli.output import CommandOutput, reporting


@click.group()
def batch() -> None:
    """Score tables with a Bento's model, each row exactly once, whatever kills it."""


batch.add_command(estimate)


@batch.command()
@click.argument("bento")
@run_options
@reporting
def run(
    output: CommandOutput,
    /,
    bento: str,
    source: str,
    target: str,
    unit_rows: int | None,
    **given: Any,
) -> None:
    """Score the rows of --in with BENTO, a Bento's tag or a bundle's folder, into --out.

    Run the same command again to go on after it was stopped or killed; a finished job is left
    as it is. Rows that cannot be scored go to a quarantine with the reason: `mlctl batch
    redrive` scores those again.
    """
    from services.batch.base import SinkRequest, SourceRequest
    from services.batch.executors import choose_executor
    from services.batch.job import BatchConfig, RunControl, column_list, run_job
    from services.batch.limits import ErrorLimit
    from services.batch.locations import without_password
    from services.batch.sinks import form_at, open_sink
    from services.batch.sources import open_source
    from services.runtime.scorable import absolute_reference, find_scorable
    from services.runtime.scorable import unit_rows as usual_unit_rows

    limit = ErrorLimit.parse(given["max_errors"])
    options = pairs(given["options"])
    model = find_scorable(bento)
    wanted = BatchConfig(
        map=given["mapped"],
        keep=column_list(given["keep"]),
        filter=given["condition"],
        partition_by=column_list(given["partition_by"]),
        format=given["form"] or form_at(target),
        unit_rows=unit_rows or usual_unit_rows(model),
        forbid_nan=given["forbid_nan"],
        finite_outputs=given["finite_outputs"],
    )
    rows = open_source(SourceRequest(source, wanted.unit_rows, options))
    sink = open_sink(SinkRequest(target, {**options, "format": wanted.format}))
    executor = choose_executor(
        given["executor"], given["threads"], given["ray_address"], given["ray_actors"]
    )
    name, size = absolute_reference(bento), given["batch_rows"]
    with stopping(output) as stop, watching(output) as watch:
        control = RunControl(limit, given["patience"], watch, stop, given["restart"])
        report = run_job(model, name, rows, sink, wanted, executor, control, size)
    show_report(output, report, without_password(target))


@batch.command()
@click.argument("target", metavar="OUT")
@click.option("--bento", help="Score with this Bento or bundle instead of the job's own.")
@work_options
@reporting
def redrive(
    output: CommandOutput, target: str, bento: str | None, threads: int | None, patience: float
) -> None:
    """Score the rows in quarantine of OUT again; those that pass join the answers.

    They do so exactly once, and the others stay. OUT is what `mlctl batch run --out` was given.
    """
    from services.batch.base import SinkRequest
    from services.batch.job import RunControl, local_executor
    from services.batch.redrive import redrive as score_again
    from services.batch.sinks import open_sink
    from services.runtime.scorable import find_scorable

    with stopping(output) as stop, watching(output) as watch:
        control = RunControl(patience=patience, watch=watch, stop=stop)
        sink = open_sink(SinkRequest(target))
        done = score_again(sink, find_scorable, bento, local_executor(threads), control)
    if output.as_json:
        json_line({"event": "redriven", "passed": done.passed, "left": done.left})
    else:
        output.line(f"{done.passed:,} rows passed, {done.left:,} stay in quarantine")
