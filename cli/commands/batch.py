"""`mlctl batch`: score tables with the model of a Bento, each row exactly once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cli.options import Duration, add_options, parse_options
from cli.output import CommandOutput, counted, reporting
from cli.progress import clock_time, only_results_on_stdout
from cli.runners.batch import run_batch
from cli.runners.batch_options import (
    FORMAT_OPTION,
    INPUT,
    KEEP,
    SIZES,
    THREADS,
    batch_options,
)

if TYPE_CHECKING:
    from services.batch.estimate import CostEstimate

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


def _estimate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options((*INPUT, KEEP, FORMAT_OPTION, *_SAMPLE, *SIZES, THREADS), command)


@click.group()
def batch() -> None:
    """Score tables with a Bento's model, each row exactly once."""


@batch.command()
@click.argument("bento")
@batch_options
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, **given: Any) -> None:
    """Score the rows of --in with BENTO (a tag, or a bundle's folder) into --out.

    Run the same command again to resume a job that was stopped or killed; a finished job is not
    repeated. Rejected rows go to a quarantine with the reason: a table that another run, with a
    corrected model, takes as its --in.

    \b
    Example:
      mlctl batch run digits --in rows.parquet --out scores/ --keep id
    """
    from services.runtime.scorable import find_scorable

    run_batch(output, partial(find_scorable, bento), **given)


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
