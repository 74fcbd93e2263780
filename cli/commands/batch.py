"""`mlctl batch`: score tables with the model of a Bento, each row exactly once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import Duration, option, parse_options, takes
from mlctl.cli.output import CommandOutput, counted, reporting
from mlctl.cli.progress import clock_time, only_results_on_stdout
from mlctl.cli.runners.batch import run_batch
from mlctl.cli.runners.batch_options import BatchInput, BatchOptions

if TYPE_CHECKING:
    from mlctl.services.batch.estimate import CostEstimate


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(BatchInput):
    """The sample that is measured, and the price of an hour."""

    duration: float = option("10s", Duration("100ms", "1h"), help="How long to measure.")
    hour_price: float | None = option(
        type=click.FloatRange(0, min_open=True),
        help="Price of one core, or of the GPU that the model runs on, for an hour; adds the cost.",
    )


@click.group()
def batch() -> None:
    """Score tables with a Bento's model, each row exactly once."""


@batch.command()
@click.argument("bento")
@takes(options=BatchOptions)
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, options: BatchOptions) -> None:
    """Score the rows of --in with BENTO (a tag, or a bundle's folder) into --out.

    Run the same command again to resume a job that was stopped or killed; a finished job is not
    repeated. Rejected rows go to a quarantine with the reason: a table that another run, with a
    corrected model, takes as its --in.

    \b
    Example:
      mlctl batch run digits --in rows.parquet --out scores/ --keep id
    """
    from mlctl.services.layout.scorable import find_scorable

    run_batch(output, partial(find_scorable, bento), options)


@batch.command()
@click.argument("bento")
@takes(options=EstimateOptions)
@reporting
def estimate(output: CommandOutput, /, bento: str, options: EstimateOptions) -> None:
    """Predict how long scoring the rows of --in with BENTO takes, and what it costs.

    Scores random units for about --duration into a temporary folder, and assumes that the other
    rows take as long.
    """
    from mlctl.services.batch.estimate import estimate as predict
    from mlctl.services.batch.job import BatchConfig, column_list
    from mlctl.services.batch.sources import open_source
    from mlctl.services.layout.scorable import find_scorable

    model = find_scorable(bento)
    config = BatchConfig(
        map=options.map,
        keep=column_list(options.keep),
        filter=options.filter,
        unit_rows=options.unit_rows,
        forbid_nan=options.forbid_nan,
    )
    rows = open_source(options.source, config.unit_rows, parse_options(options.settings))
    price, seconds, threads = options.hour_price, options.duration, options.threads
    with output.working() as show, only_results_on_stdout():
        show("Scoring a sample ...")
        found = predict(model, rows, config, price, seconds, threads, options.batch_rows)
    if output.as_json:
        output.document({"digest": model.digest, **found.as_dict()})
    else:
        _show_estimate(output, found)


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
