"""`mlctl events`: the record of a deployment."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("name")
@click.option("--ticks", is_flag=True, help="Include every tick of the rollouts.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@reporting(json_lines=True)
def events(output: CommandOutput, name: str, *, ticks: bool, follow: bool) -> None:
    """Print the recorded events of the deployment NAME, oldest first.

    With --json each line is a document with `seq`, `at` (seconds since 1970), `rollout`, `kind` and
    `body`.
    """
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.rendering import event_line

    try:
        for event in deployments.record(name, ticks=ticks, follow=follow):
            if output.as_json:
                click.echo(json.dumps(asdict(event), ensure_ascii=False))
            elif line := event_line(event):
                output.line(line)
    except KeyboardInterrupt:
        if not follow:  # it is the usual end of --follow
            raise
