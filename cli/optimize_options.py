"""The options of `mlctl optimize`, in the order in which its help lists them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

_POSITIVE = click.FloatRange(0, min_open=True)
_SHARE = click.FloatRange(0, 1)

_DATA = (
    click.option(
        "--data",
        required=True,
        metavar="PATH|MODULE:FUNCTION",
        help="Rows: .npz, .parquet, a folder of .parquet (such as a server's samples), or a "
        "function that gives batches. One array per model input, and `labels` if there are any.",
    ),
    click.option(
        "--rows",
        type=click.IntRange(1),
        default=1000,
        show_default=True,
        help="How many rows to judge on, at most.",
    ),
    click.option(
        "--calibration-rows",
        type=click.IntRange(1),
        default=256,
        show_default=True,
        help="How many other rows to calibrate with, at most.",
    ),
    click.option(
        "--transform",
        type=click.Path(path_type=Path),
        help="A transform.py, or its folder: preprocess and postprocess, served too.",
    ),
)

_WORK = (
    click.option(
        "--target",
        type=click.Choice(["cpu", "cuda", "tensorrt"]),
        default="cpu",
        show_default=True,
        help="What the variants are to run on.",
    ),
    click.option(
        "--recipes",
        multiple=True,
        metavar="NAME[,NAME...]",
        help="Which variants to try.  [default: all for the target]",
    ),
    click.option(
        "--calibrator",
        type=click.Choice(["auto", "minmax", "entropy", "percentile"]),
        default="auto",
        show_default=True,
        help="How static INT8 finds its ranges; auto tries all.",
    ),
)

_GATES = (
    click.option(
        "--metric",
        metavar="NAME|MODULE:FUNCTION",
        help="accuracy, top5, f1, rmse, or a function of outputs and labels.  "
        "[default: accuracy if there are labels]",
    ),
    click.option(
        "--max-accuracy-drop",
        type=click.FloatRange(0),
        help="Maximum drop of the metric against the source model, judged by its upper bound; "
        "needs labels.  [default: 0.01; for errors such as rmse 1 % of the source's error]",
    ),
    click.option(
        "--min-agreement",
        type=_SHARE,
        help="Minimum share of rows that agree with the source model, for class scores and "
        "labels.  [default: 0.99 without labels]",
    ),
    click.option(
        "--min-cosine",
        type=_SHARE,
        help="Minimum centred cosine with the source's outputs; also limits relative L2.  "
        "[default: 0.98 without labels]",
    ),
    click.option("--max-p95-ms", type=_POSITIVE, help="For a single row."),
    click.option("--max-size-mb", type=_POSITIVE, help="Of the model file and its data."),
    click.option(
        "--prefer",
        type=click.Choice(["latency", "throughput", "size"]),
        default="latency",
        show_default=True,
        help="What to choose by, among the variants that pass.",
    ),
)

_REST = (
    click.option(
        "--batching",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.json",
        help="How the server is to join requests: max_rows or buckets, pad, max_wait_ms, "
        "max_queue_rows, max_queue_ms.  [default: up to 32 rows]",
    ),
    click.option(
        "--allow-pickle",
        is_flag=True,
        help="Load a model that is stored as a pickle, which runs code of its author.",
    ),
    click.option(
        "--report",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE.html",
        help="Write the report there too, also if nothing passes.",
    ),
    click.option("--dry-run", is_flag=True, help="Only list what would run."),
)


def optimize_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to `command`."""
    options = (*_DATA, *_WORK, *_GATES, *_REST)
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)
