"""The command of an image: serve the Bento that holds this file, or score with its models."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

import mlctl
from mlctl.cli.options import CONTEXT_SETTINGS, takes
from mlctl.cli.output import CommandOutput, ReportingGroup, reporting
from mlctl.cli.progress import interruptible
from mlctl.cli.runners.batch import run_batch
from mlctl.cli.runners.batch_options import BatchOptions
from mlctl.cli.runners.stream import score_stream
from mlctl.cli.runners.stream_options import StreamRunOptions

# A Bento has its code in the folder `src`.
_BENTO = Path(str(mlctl.__file__)).parents[2]

_MODEL = click.option(
    "--model",
    default="",
    show_default=False,
    metavar="NAME",
    help="One of several models.  [default: the pipeline, or the first]",
)


@click.group(
    cls=ReportingGroup,
    invoke_without_command=True,
    context_settings=CONTEXT_SETTINGS,
)
@click.pass_context
def image(context: click.Context) -> None:
    """Serve the models of this image over HTTP and gRPC, or score a table or a stream with one."""
    if context.invoked_subcommand is None:
        context.invoke(serve)


@image.command()
def serve() -> None:
    """Serve the models; the same as no command. The settings are environment variables."""
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", "serve", str(_BENTO)])  # noqa: S606


@image.command()
@_MODEL
@takes(options=BatchOptions)
@reporting(json_lines=True)
def batch(output: CommandOutput, /, model: str, options: BatchOptions) -> None:
    """Score the rows of --in into --out: `mlctl batch run` with a model of this image."""
    from mlctl.services.layout.scorable import scorable_in

    # As process 1 of a container, Python ignores SIGTERM unless it has a handler.
    with interruptible():
        run_batch(output, partial(scorable_in, _BENTO / "src", model), options)


@image.command()
@_MODEL
@takes(options=StreamRunOptions)
@reporting(json_lines=True)
def stream(output: CommandOutput, /, model: str, options: StreamRunOptions) -> None:
    """Score the messages of --in into --out: `mlctl stream run` with a model of this image."""
    from mlctl.services.layout.scorable import scorable_in

    with interruptible():
        score_stream(output, partial(scorable_in, _BENTO / "src", model), options)
