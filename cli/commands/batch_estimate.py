"""`mlctl batch estimate`: time and cost of a job before you run it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from cli.batch_options import estimate_options
from cli.batches import pairs
from cli.optimizing import duration, only_results_on_stdout
from cli.output import CommandOutput, counted, reporting

if TYPE_CHECKING:
    from services.batch.estimate import CostEstimate


@click.command()
@click.argument("bento")
@estimate_options
@reporting
def estimate(
    output: CommandOutput, /, bento: str, source: str, unit_rows: int | None, **given: Any
) -> None:
    """Predict how long scoring the rows of --in with BENTO takes, and what it costs.

    Scores random units for about --seconds into a temporary folder, and assumes that the other rows
    take as long.
    """
    from services.batch.estimate import estimate as predicted
    from services.batch.job import UNIT_ROWS, BatchConfig, column_list
    from services.batch.sources import open_source
    from services.runtime.scorable import find_scorable

    model = find_scorable(bento)
    config = BatchConfig(
        map=given["mapped"],
        keep=column_list(given["keep"]),
        filter=given["condition"],
        unit_rows=unit_rows or UNIT_ROWS,
        forbid_nan=given["forbid_nan"],
    )
    rows = open_source(source, config.unit_rows, pairs(given["options"]))
    cpu_hour, seconds = given["cpu_hour"], given["seconds"]
    with output.working() as show, only_results_on_stdout():
        show("Scoring a sample ...")
        found = predicted(
            model, rows, config, cpu_hour, seconds, given["threads"], given["batch_rows"]
        )
    if output.as_json:
        output.document({"digest": model.digest, **found.as_dict()})
    else:
        _show(output, found)


def _show(output: CommandOutput, found: CostEstimate) -> None:
    rows, units = counted(found.rows, "row"), counted(found.units, "unit")
    output.line(f"Sample: {rows} in {units}, {found.bad:,} bad")
    output.line(
        f"{written(found.core_seconds)} ± {written(found.spread)} core-seconds per million rows, "
        f"after {found.open_seconds:.1f} s to open the model"
    )
    if found.job_seconds is not None and found.core_hours is not None:
        output.line(
            f"All {found.total_rows:,} rows: {written(found.core_hours)} core-hours, "
            f"{duration(found.job_seconds)} with {counted(found.threads, 'thread')}"
        )
    if found.million_cost is not None:
        whole = "" if found.job_cost is None else f"; of all rows: {written(found.job_cost)}"
        output.line(f"Cost of a million rows: {written(found.million_cost)}{whole}")
    output.note("Answers go to a temporary folder of this machine; another output may be slower.")


def written(value: float) -> str:
    """Three digits, written out: 1,750 and 0.0000126 rather than powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"
