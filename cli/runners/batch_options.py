"""Options of a batch run, in the order of its help; `mlctl batch estimate` shares some."""

from __future__ import annotations

from dataclasses import dataclass

import click

from mlctl.cli.options import Duration, option


@dataclass(frozen=True, kw_only=True)
class BatchInput:
    """The rows to score, and the work that they are divided into."""

    source: str = option(
        name="--in",
        required=True,
        metavar="PATH|URL",
        help="Rows to score: a file, folder, glob or URL.",
    )
    map: tuple[str, ...] = option(
        metavar="INPUT=COLUMN[,COLUMN...]",
        help="Columns that feed a model input; 'INPUT=GLOB*' takes all matching columns.",
    )
    filter: str | None = option(help='Score only matching rows: "age >= 18".')
    forbid_nan: bool = option(help="Reject rows with a NaN in an input.")
    keep: tuple[str, ...] = option(
        metavar="COLUMN[,COLUMN...]",
        help="Input columns to copy to the answers; '*' for all of them.",
    )
    settings: tuple[str, ...] = option(
        name="--option",
        metavar="NAME=VALUE",
        help="Setting of one input or output format; see docs/batch.md.",
    )
    unit_rows: int = option(
        100_000,
        click.IntRange(1),
        help="Minimum rows in a unit: row groups of a file are joined.",
    )
    batch_rows: int | None = option(
        type=click.IntRange(1),
        help="Rows in one call of the model.  [default: by the model's size]",
    )
    threads: int | None = option(
        type=click.IntRange(1), help="Number of scoring threads.  [default: all cores]"
    )


@dataclass(frozen=True, kw_only=True)
class BatchOptions(BatchInput):
    """A job: where answers go, which rows are rejected, and how it is executed."""

    target: str = option(
        name="--out",
        required=True,
        metavar="PATH|URL",
        help="Where answers go: a folder, or the URL of a bucket or a table.",
    )
    partition_by: tuple[str, ...] = option(
        metavar="COLUMN[,COLUMN...]", help="Write one folder per value of these columns."
    )
    format: str | None = option(help="Format of the files in --out.  [default: parquet]")
    finite_outputs: bool = option(help="Reject rows with a NaN or infinite answer.")
    max_errors: str = option(
        "1%",
        metavar="N|P%",
        help="Maximum number or share of rejected rows; above it the job ends with exit code 14.",
    )
    restart: bool = option(help="Delete what the previous job wrote, and start again.")
    max_tokens: int | None = option(
        type=click.IntRange(1),
        help="Language models: maximum tokens of an answer.  [default: 256]",
    )
    temperature: float | None = option(
        type=click.FloatRange(0),
        help="Language models: 0 takes the most probable tokens.  [default: 0]",
    )
    seed: int | None = option(
        type=click.IntRange(0),
        help="Language models: equal seeds give equal answers.  [default: 0]",
    )
    executor: str = option(
        "local",
        click.Choice(["local", "ray"]),
        help="Score with threads of this process or with actors of a Ray cluster.",
    )
    ray_address: str | None = option(
        metavar="ADDRESS",
        help="The Ray cluster: ray://HOST:10001, HOST:6379, auto.  [default: one started here]",
    )
    ray_actors: int | None = option(
        type=click.IntRange(1),
        help="Number of scoring actors.  [default: one per core, or per GPU]",
    )
    patience: float = option(
        "5m", Duration(), help="How long to wait for a full disk or a lost connection."
    )
    grace: float = option(
        "20s",
        Duration(),
        help="How long units in progress may take after SIGTERM before they are abandoned.",
    )
