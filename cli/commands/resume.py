"""`mlctl resume`: go on with a rollout that is paused."""

from __future__ import annotations

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="asked for by hand", show_default=True, help="For the record.")
@reporting
def resume(output: CommandOutput, name: str, reason: str) -> None:
    """Go on with the paused rollout of NAME.

    One that was paused at its deadline gets the same time once more.
    """
    from cli.rollout_commands import send
    from rollout.domain.operator_commands import OperatorCommand

    send(output, name, OperatorCommand.RESUME, reason)
