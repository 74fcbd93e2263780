"""`mlctl scale`: how many replicas a deployment has."""

from __future__ import annotations

import time
from typing import Any

import click

from bundle.errors import ErrorCode, MlctlError
from cli.output import CommandOutput, reporting
from cli.scaling import bound_options, bounds


@click.command()
@click.argument("name")
@click.option(
    "--replicas",
    type=click.IntRange(1, 64),
    help="Run exactly this many replicas; turns autoscaling off.",
)
@bound_options
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until all replicas are ready."
)
@reporting
def scale(
    output: CommandOutput,
    /,
    name: str,
    replicas: int | None,
    min_replicas: int | None,
    max_replicas: int | None,
    *,
    wait: bool,
    **autoscaling: Any,
) -> None:
    """Change the number of replicas of NAME, or its autoscaling.

    A replica finishes its requests before it stops. Rejected during a rollout, which compares both
    revisions at the same size.
    """
    from rollout.client import scaling as resizing

    found = bounds(min_replicas, max_replicas, replicas)
    if found is None and replicas is None:
        raise click.UsageError("give --replicas, or --min-replicas and --max-replicas")
    least, most = found or (None, None)
    deployment = resizing.scale(
        name, replicas, min_replicas=least, max_replicas=most, **autoscaling
    )
    settings = deployment.settings
    if wait:
        deadline = time.monotonic() + settings.ready_seconds
        while not resizing.settled(name):
            if time.monotonic() > deadline:
                raise MlctlError(
                    ErrorCode.NOT_READY,
                    f"not all replicas of {name!r} became ready in {settings.ready_seconds:g} s",
                    f"`mlctl ps {name}` shows which, `mlctl logs {name}` why.",
                )
    if output.as_json:
        document = {"name": name, "replicas": settings.replicas, "min": least, "max": most}
        output.document(document)
    elif found is None:
        output.line(f"{name} has {settings.replicas} replicas")
    else:
        output.line(f"{name} scales between {least} and {most} replicas")
