"""`mlctl choose`: online, batch, stream or precomputed, with the sums."""

from __future__ import annotations

from dataclasses import asdict

import click

from mlctl.cli.options import Duration
from mlctl.cli.output import CommandOutput, reporting

_POSITIVE = click.FloatRange(0, min_open=True)


@click.command()
@click.option(
    "--used-by",
    type=click.Choice(("requests", "table", "events")),
    required=True,
    help="Callers that wait for an answer, rows of a table, or messages.",
)
@click.option("--rows-per-day", type=_POSITIVE, required=True, help="Predictions used in a day.")
@click.option(
    "--max-age",
    "max_age_seconds",
    type=Duration(),
    help="How old the inputs behind a prediction may be; default 1d for a table, else 0s.",
)
@click.option("--max-p99-ms", "latency_ms", type=_POSITIVE, help="Time that callers can wait.")
@click.option(
    "--keys",
    type=click.IntRange(1),
    help="Number of different entities in the requests, if their inputs are stored.",
)
@click.option(
    "--rows-per-second",
    type=_POSITIVE,
    default=1000.0,
    help="Rows that one core computes in a second; the report of `mlctl optimize` has it.",
)
@reporting
def choose(
    output: CommandOutput,
    /,
    used_by: str,
    rows_per_day: float,
    max_age_seconds: float | None,
    latency_ms: float | None,
    keys: int | None,
    rows_per_second: float,
) -> None:
    """Choose between online, batch, stream and precomputed predictions.

    Compares the core-hours per day of each, with the sums, and prints the commands to begin with.

    \b
    Examples:
      mlctl choose --used-by requests --rows-per-day 2e6 --max-p99-ms 50
      mlctl choose --used-by table --rows-per-day 1e8 --max-age 6h
    """
    from mlctl.doctor.patterns import (
        Consumer,
        WorkloadNeeds,
        choose_pattern,
        commands,
        compare_patterns,
    )

    workload = WorkloadNeeds(
        consumer=Consumer(used_by),
        rows_per_day=rows_per_day,
        max_age_seconds=max_age_seconds,
        latency_ms=latency_ms,
        keys=keys,
        rows_per_second=rows_per_second,
    )
    best, costs = choose_pattern(workload), compare_patterns(workload)
    if output.as_json:
        patterns = [asdict(each) for each in costs]
        chosen = {"pattern": best.pattern, "commands": commands(best.pattern)}
        output.document({**chosen, "patterns": patterns})
        return
    rows = ((each.pattern, f"{each.core_hours:,.2f}", each.obstacle or each.sum) for each in costs)
    output.table(("Pattern", "Core-hours a day>", "Sum, or why it does not fit"), rows)
    output.line(f"{best.pattern}: the cheapest that fits")
    for command in commands(best.pattern):
        output.line(f"  {command}")
