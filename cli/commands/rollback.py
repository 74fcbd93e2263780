"""`mlctl rollback`: take the rollout under way back by hand."""

from __future__ import annotations

import click

from bundle.errors import ErrorCode, MlctlError
from cli.output import Output, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="asked for by hand", show_default=True, help="For the record.")
@reporting
def rollback(output: Output, name: str, reason: str) -> None:
    """Take the rollout under way on NAME back.

    All traffic returns to the previous model at once.
    """
    from cli.rollouts import event_line
    from rollout import deployments

    rollout = deployments.rollback(name, reason)
    restored: dict[str, object] = {}
    for event in deployments.follow(name, rollout):
        if event.kind == "traffic_restored":
            restored = dict(event.body)
        if event.kind in ("traffic_restored", "ended") and not output.as_json:
            output.line(event_line(event) or "")
    if not restored:
        raise MlctlError(
            ErrorCode.DEPLOYMENT_NOT_FOUND, f"{name} was taken down before the rollback was done"
        )
    if output.as_json:
        output.document({"name": name, "rollout": rollout, **restored})
