"""`mlctl abort`: give a rollout up, without a verdict on its candidate."""

from __future__ import annotations

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="by operator", show_default=True, help="Reason for the history.")
@reporting
def abort(output: CommandOutput, name: str, reason: str) -> None:
    """Give up the rollout under way on NAME.

    All traffic returns to the previous model at once, and the outcome is `aborted`: it says
    nothing against the candidate, as `mlctl rollback` does.
    """
    from cli.operator_commands import roll_back
    from rollout.domain.operator_commands import OperatorCommand

    roll_back(output, name, OperatorCommand.ABORT, reason)
