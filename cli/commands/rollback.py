"""`mlctl rollback`: return all traffic to the previous version."""

from __future__ import annotations

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--reason", default="by operator", help="Reason for the history.")
@reporting
def rollback(output: CommandOutput, name: str, reason: str) -> None:
    """Return all traffic of NAME to the previous version at once.

    Ends the rollout in progress. After a finished promotion it takes that promotion back: the
    previous version still runs for `promote --keep-previous`, and is started first after that. The
    alias and the history follow.
    """
    from cli.operator_commands import roll_back

    roll_back(output, name, reason)
