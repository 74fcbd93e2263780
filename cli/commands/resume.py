"""`mlctl resume`: continue a paused rollout."""

from __future__ import annotations

import click

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="by operator", help="Reason for the history.")
@reporting
def resume(output: CommandOutput, name: str, reason: str) -> None:
    """Continue the paused rollout of NAME.

    A rollout that was paused at its deadline gets the same time again.
    """
    from mlctl.cli.operator_commands import send_command
    from mlctl.rollout.domain.operator_commands import OperatorCommand

    send_command(output, name, OperatorCommand.RESUME, reason)
