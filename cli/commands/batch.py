"""`mlctl batch`: score tables with the model of a Bento, each row exactly once."""

from __future__ import annotations

from typing import Any

import click

from cli.batch_options import run_options
from cli.batches import pairs, require_no_options, show_report, stopping, watching
from cli.commands.batch_estimate import estimate
from cli.output import CommandOutput, reporting


@click.group()
def batch() -> None:
    """Score tables with a Bento's model, each row exactly once."""


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

    Run the same command again to resume after it was stopped or killed; a finished job is left as
    it is. Rows that cannot be scored go to a quarantine with the reason: a table that another run,
    with a fixed model, takes as its --in.
    """
    from services.batch.engine import RunControl
    from services.batch.job import UNIT_ROWS, BatchConfig, column_list, local_executor, run_job
    from services.batch.limits import ErrorLimit
    from services.batch.locations import without_password
    from services.batch.sinks import open_sink, part_format
    from services.batch.sources import open_source
    from services.runtime.scorable import find_scorable

    limit = ErrorLimit.parse(given["max_errors"])
    options = pairs(given["options"])
    if given["executor"] == "ray":
        require_no_options("--executor ray", {"--threads": given["threads"]})
        from services.batch.ray_executor import ray_executor

        executor = ray_executor(given["ray_address"], given["ray_actors"])
    else:
        ray_options = {"--ray-address": given["ray_address"], "--ray-actors": given["ray_actors"]}
        require_no_options("--executor local", ray_options)
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
    with stopping(output) as stop, watching(output) as watch:
        control = RunControl(
            limit, given["patience"], given["grace"], watch, stop, given["restart"]
        )
        report = run_job(model, rows, sink, config, executor, control, given["batch_rows"])
    show_report(output, report, without_password(target))
