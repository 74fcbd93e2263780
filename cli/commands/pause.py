"""`mlctl pause`: pause the current rollout."""

from __future__ import annotations

import click

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="by operator", help="Reason for the history.")
@reporting
def pause(output: CommandOutput, name: str, reason: str) -> None:
    """Pause the current rollout of NAME.

    The weights stay and its timers stop. The gates stay active and can still roll it back. Continue
    with `mlctl resume`, or end it with `mlctl rollback`.
    """
    from mlctl.cli.operator_commands import send_command
    from mlctl.rollout.domain.operator_commands import OperatorCommand

    send_command(output, name, OperatorCommand.PAUSE, reason)
