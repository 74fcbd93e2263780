"""`mlctl pause`: keep the weights of the rollout under way where they are."""

from __future__ import annotations

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="asked for by hand", show_default=True, help="For the record.")
@reporting
def pause(output: CommandOutput, name: str, reason: str) -> None:
    """Pause the rollout under way on NAME.

    Its weights stay and its clocks stand still. The gates stay active: harm still rolls it
    back. `mlctl resume` continues, `mlctl rollback` ends it.
    """
    from cli.rollout_commands import send
    from rollout.domain.operator_commands import OperatorCommand

    send(output, name, OperatorCommand.PAUSE, reason)
