"""`mlctl batch estimate`: what a job would take and cost, before it is run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from cli.batch_options import estimate_options
from cli.batches import pairs
from cli.optimizing import duration, only_results_on_stdout
from cli.output import Output, counted, reporting

if TYPE_CHECKING:
    from services.batch.estimate import Estimate, Range


@click.command()
@click.argument("bento")
@estimate_options
@reporting
def estimate(
    output: Output, /, bento: str, source: str, unit_rows: int | None, **given: Any
) -> None:
    """Predict what it takes and costs to score the rows of --in with BENTO.

    Units from all over the input are done as a job would, for about --seconds, into a temporary
    folder. The intervals tell how units differ, not how busy the machine will be.
    """
    from services.batch.base import SourceRequest
    from services.batch.estimate import Prices
    from services.batch.estimate import estimate as predicted
    from services.batch.job import Wanted, column_list
    from services.batch.model import find_scorable
    from services.batch.model import unit_rows as usual_unit_rows
    from services.batch.sources import open_source

    if (given["online_hour"] is None) != (given["online_rps"] is None):
        raise click.UsageError("--online-hour and --online-rps need each other")
    model = find_scorable(bento)
    wanted = Wanted(
        map=given["mapped"],
        keep=column_list(given["keep"]),
        filter=given["condition"],
        unit_rows=unit_rows or usual_unit_rows(model),
        forbid_nan=given["forbid_nan"],
    )
    rows = open_source(SourceRequest(source, wanted.unit_rows, pairs(given["options"])))
    prices = Prices(given["cpu_hour"], given["online_hour"], given["online_rps"])
    with output.working() as tell, only_results_on_stdout():
        tell("Scoring a sample ...")
        found = predicted(
            model, rows, wanted, prices, given["seconds"], given["threads"], given["batch_rows"]
        )
    if output.as_json:
        output.document({"digest": model.digest, **found.as_dict()})
    else:
        _show(output, found)


def _show(output: Output, found: Estimate) -> None:
    where = "from all over the input" if found.spread else "from the beginning of the input"
    rows, units = counted(found.rows, "row"), counted(found.units, "unit")
    output.line(f"Sample: {rows} in {units} {where}, {found.bad:,} bad")
    output.line(
        f"A million rows: {_range(found.seconds)} s with {found.threads} threads, "
        f"{written(found.cpu_seconds)} CPU-seconds"
    )
    parts = ", ".join(f"{name} {written(each.middle)} s" for name, each in found.stages.items())
    output.line(f"Stages, at once: {parts}")
    if found.job_seconds is not None:
        output.line(
            f"All {found.total_rows:,} rows: {duration(found.job_seconds.middle)}, "
            f"{_range(found.job_seconds)} s, and {found.open_seconds:.1f} s to begin"
        )
    if found.batch_cost is not None:
        all_of_it = "" if found.job_cost is None else f"; all of it {_range(found.job_cost)}"
        output.line(f"Cost of a million rows in a batch: {_range(found.batch_cost)}{all_of_it}")
    if found.online_cost is not None:
        output.line(f"Cost of a million rows online, never idle: {written(found.online_cost)}")
    output.note("Writing is to a temporary folder of this machine; another place may be slower.")


def _range(found: Range) -> str:
    if found.low is None or found.high is None:
        return f"{written(found.middle)} (one measurement: no interval)"
    return f"{written(found.middle)} ({written(found.low)} to {written(found.high)})"


def written(value: float) -> str:
    """Three digits, written out: 1,750 and 0.0000126 rather than powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"
