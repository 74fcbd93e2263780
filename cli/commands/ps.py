"""`mlctl ps`: the processes of the deployments."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.rollout.client.process_table import ProcessRow

_COLUMNS = ("DEPLOYMENT", "ROLE", "PID>", "PORT>", "CPU>", "MEMORY>", "UP>", "RESTARTS>", "STATE")


@click.command()
@click.argument("name", required=False)
@reporting
def ps(output: CommandOutput, name: str | None) -> None:
    """Show the processes of the deployments, or of one of them.

    CPU is in cores over a short moment. RESTARTS counts since `up`; a plus means that it goes
    on crashing and is no longer counted.
    """
    from mlctl.rollout.client.process_table import listing

    found = listing(name)
    if output.as_json:
        documents = [
            {"name": deployment.name, "processes": [asdict(row) for row in rows]}
            for deployment, rows in found
        ]
        output.document({"deployments": documents})
    elif not found:
        output.note("No deployment is up: start one with `mlctl up NAME BENTO`.")
    else:
        lines = [_cells(deployment.name, row) for deployment, rows in found for row in rows]
        output.table(_COLUMNS, lines)


def _cells(name: str, row: ProcessRow) -> tuple[str, ...]:
    return (
        *(name, row.role, str(row.pid), "" if row.port is None else str(row.port)),
        "" if row.cpu is None else f"{row.cpu:.2f}",
        "" if row.rss is None else f"{row.rss / (1 << 20):.0f} MiB",
        "" if row.uptime is None else _duration(row.uptime),
        f"{row.restarts}{'+' if row.looping else ''}",
        "healthy" if row.healthy else "down" if row.uptime is None else "not ready",
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
