"""`mlctl scale`: how many replicas a deployment has."""

from __future__ import annotations

from dataclasses import asdict

import click

from mlctl.cli.options import takes
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.scaling import REPLICAS, ScalingOptions
from mlctl.core.errors import ErrorCode, MlctlError


@click.command()
@click.argument("name")
@click.option(
    "--replicas",
    type=REPLICAS,
    help="Run exactly this many replicas; turns autoscaling off.",
)
@takes(scaling=ScalingOptions)
@click.option("--wait/--no-wait", default=True, help="Wait until all replicas are ready.")
@reporting
def scale(
    output: CommandOutput,
    /,
    name: str,
    replicas: int | None,
    *,
    wait: bool,
    scaling: ScalingOptions,
) -> None:
    """Change the number of replicas of NAME, or its autoscaling.

    A replica finishes its requests before it stops. Rejected during a rollout, which compares both
    revisions at the same size.
    """
    from mlctl.rollout.client import scaling as client
    from mlctl.rollout.client.lifecycle import wait_until

    found = scaling.bounds(replicas)
    if found is None and replicas is None:
        raise click.UsageError("give --replicas, or --min-replicas and --max-replicas")
    low, high = found or (None, None)
    given = {name: value for name, value in asdict(scaling).items() if value is not None}
    bounds = {"min_replicas": low, "max_replicas": high}
    deployment = client.scale(name, replicas, **{**given, **bounds})
    settings = deployment.settings
    if wait and not wait_until(lambda: client.settled(name), settings.ready_seconds):
        raise MlctlError(
            ErrorCode.NOT_READY,
            f"not all replicas of {name!r} became ready in {settings.ready_seconds:g} s",
            f"`mlctl ps {name}` shows which, `mlctl logs {name}` why.",
        )
    if output.as_json:
        document = {"name": name, "replicas": settings.replicas, "min": low, "max": high}
        output.document(document)
    elif found is None:
        output.line(f"{name} has {settings.replicas} replicas")
    else:
        output.line(f"{name} scales between {low} and {high} replicas")
