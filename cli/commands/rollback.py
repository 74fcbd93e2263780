"""`mlctl rollback`: take the rollout under way back by hand."""

from __future__ import annotations

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="by operator", show_default=True, help="Reason for the history.")
@reporting
def rollback(output: CommandOutput, name: str, reason: str) -> None:
    """Take the rollout under way on NAME back.

    All traffic returns to the previous model at once.
    """
    from cli.operator_commands import roll_back
    from rollout.domain.operator_commands import OperatorCommand

    roll_back(output, name, OperatorCommand.ROLLBACK, reason)
