"""`mlctl down`: stop a deployment."""

from __future__ import annotations

import click

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@reporting
def down(output: CommandOutput, name: str) -> None:
    """Stop the deployment NAME: its Bentos, its proxy and its daemon. The history stays."""
    from mlctl.rollout.client import deployments

    deployments.down(name)
    output.result({"name": name, "up": False}, f"{name} is down")
