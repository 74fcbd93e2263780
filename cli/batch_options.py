"""The options of `mlctl batch`, in the order of their help."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

_OPTION = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of one input or output format.",
)

_KEEP = click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN[,COLUMN...]",
    help="Columns to copy to the answers.",
)

_ROWS = (
    click.option(
        "--in",
        "source",
        required=True,
        metavar="LOCATION",
        help="File, folder, glob or URL of rows.",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN[,COLUMN...]",
        help="Columns that feed an input; 'INPUT=GLOB*' takes all matching columns.",
    ),
    click.option("--filter", "condition", help='Score only matching rows: "age >= 18".'),
    click.option("--forbid-nan", is_flag=True, help="A row with a NaN in an input is bad."),
)

_SAMPLE = (
    click.option(
        "--seconds",
        type=click.FloatRange(0.1, 3600),
        default=10.0,
        show_default=True,
        help="How long to measure.",
    ),
    click.option(
        "--cpu-hour",
        type=click.FloatRange(0, min_open=True),
        help="Price of one core for an hour; adds the cost.",
    ),
)

_ANSWERS = (
    click.option(
        "--out",
        "target",
        required=True,
        metavar="LOCATION",
        help="Folder, bucket or table of answers.",
    ),
    _KEEP,
    click.option(
        "--partition-by",
        multiple=True,
        metavar="COLUMN[,COLUMN...]",
        help="Columns whose values become folders.",
    ),
    click.option("--format", "form", help="Format of a folder's files.  [default: parquet]"),
    _OPTION,
    click.option(
        "--finite-outputs",
        is_flag=True,
        help="A row whose answer is not finite is bad.",
    ),
    click.option(
        "--max-errors", default="1%", show_default=True, metavar="N|P%", help="Bad rows allowed."
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
    click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Score with threads of this process or actors of a Ray cluster.",
    ),
    click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="The Ray cluster: ray://HOST:10001, HOST:6379, auto.  [default: one started here]",
    ),
    click.option(
        "--ray-actors",
        type=click.IntRange(1),
        help="Actors that score.  [default: one for each core, or GPU]",
    ),
)

_THREADS = click.option(
    "--threads", type=click.IntRange(1), help="Threads that score.  [default: all cores]"
)

_WORK = (
    _THREADS,
    click.option(
        "--patience",
        type=click.FloatRange(0),
        default=300.0,
        show_default=True,
        help="Seconds to wait for a full disk or a lost connection.",
    ),
    click.option(
        "--grace",
        type=click.FloatRange(0),
        default=20.0,
        show_default=True,
        help="Seconds that units in progress have to finish after SIGTERM.",
    ),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a run to `command`."""
    return _added((*_ROWS, *_ANSWERS, *_SIZES, *_WORK), command)


def estimate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of an estimate to `command`."""
    return _added((*_ROWS, _KEEP, _OPTION, *_SAMPLE, *_SIZES[:2], _THREADS), command)


def _added(
    options: tuple[Callable[..., Any], ...], command: Callable[..., Any]
) -> Callable[..., Any]:
    return reduce(lambda made, option: option(made), reversed(options), command)
