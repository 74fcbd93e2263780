"""`mlctl logs`: the output of a deployment's processes."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.rollout.drivers.local.logs import LogLine

_POLL_SECONDS = 0.2


@click.command()
@click.argument("name")
@click.option(
    "--role",
    help="Process to show: blue, green, blue/0, proxy, activator or daemon.  [default: all]",
)
@click.option(
    "-n",
    "--last",
    "lines",
    type=click.IntRange(0),
    default=20,
    help="Lines of each log.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@reporting(json_lines=True)
def logs(output: CommandOutput, name: str, role: str | None, lines: int, *, follow: bool) -> None:
    """Print the logs of the deployment NAME, running or stopped.

    With --json each line is a document {"role": ..., "text": ...}.
    """
    from mlctl.rollout.drivers.local import logs as files

    directory = files.directory_of(name)
    wanted = files.roles(directory, role)
    follower = files.Follower(directory, lambda: files.roles(directory, role)) if follow else None
    for each in wanted:
        for line in files.tail(directory, each, lines):
            _print(output, line, named=len(wanted) > 1)
    with contextlib.suppress(KeyboardInterrupt):  # the usual end of --follow
        while follower is not None:
            for line in follower.read():
                _print(output, line, named=True)
            time.sleep(_POLL_SECONDS)


def _print(output: CommandOutput, line: LogLine, *, named: bool) -> None:
    if output.as_json:
        click.echo(json.dumps({"role": line.role, "text": line.text}, ensure_ascii=False))
    else:
        output.line(f"{line.role:<9} {line.text}" if named else line.text)
