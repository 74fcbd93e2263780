"""Options of a batch run, in the order of its help; `mlctl batch estimate` shares some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cli.options import Duration, add_options

INPUT = (
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

KEEP = click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN[,COLUMN...]",
    help="Input columns to copy to the answers; '*' for all of them.",
)

FORMAT_OPTION = click.option(
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
    KEEP,
    click.option(
        "--partition-by",
        multiple=True,
        metavar="COLUMN[,COLUMN...]",
        help="Write one folder per value of these columns.",
    ),
    click.option("--format", "form", help="Format of the files in --out.  [default: parquet]"),
    FORMAT_OPTION,
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

SIZES = (
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

_ANSWERS = (
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        help="Language models: maximum tokens of an answer.  [default: 256]",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(0),
        help="Language models: 0 takes the most probable tokens.  [default: 0]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="Language models: equal seeds give equal answers.  [default: 0]",
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

THREADS = click.option(
    "--threads", type=click.IntRange(1), help="Number of scoring threads.  [default: all cores]"
)

_WORK = (
    THREADS,
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


def batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a run to `command`."""
    return add_options((*INPUT, *_OUTPUT, *SIZES, *_ANSWERS, *_EXECUTOR, *_WORK), command)
