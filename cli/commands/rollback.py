"""`mlctl rollback`: take the rollout under way back by hand."""

from __future__ import annotations

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="asked for by hand", show_default=True, help="For the record.")
@reporting
def rollback(output: CommandOutput, name: str, reason: str) -> None:
    """Take the rollout under way on NAME back.

    All traffic returns to the previous model at once.
    """
    from cli.rollout_commands import take_back

    take_back(output, name, reason)
