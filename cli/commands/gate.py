"""`mlctl gate`: the gates as an HTTP service for Argo Rollouts and Flagger."""

from __future__ import annotations

import sys

import click

from mlctl.cli.options import PORT
from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.option(
    "--source",
    "sources",
    multiple=True,
    required=True,
    metavar="NAME=URL",
    help="Server to compare: NAME=http://HOST:PORT/metrics, or "
    "NAME=service:NAMESPACE/SERVICE for all pods of a Service. Repeat it: at least two.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    type=PORT,
    default=8085,
    help="Port to listen on.",
)
@click.option(
    "--pods",
    type=click.Choice(("api", "direct")),
    default="direct",
    help="Read pods' metrics at their own addresses, or through the API server.",
)
@reporting
def gate(
    output: CommandOutput,
    /,
    sources: tuple[str, ...],
    host: str,
    port: int,
    pods: str,
) -> None:
    """Judge canaries of Argo Rollouts or Flagger over HTTP.

    GET /gates/ID?blue=NAME&green=NAME answers success, failure or inconclusive as JSON;
    POST /flagger/HOOK answers with a status code. The service reads only the --source servers, and
    keeps the counts of each rollout on disk.
    """
    from mlctl.core.ports import require_free
    from mlctl.rollout.gate_service.run import serve
    from mlctl.rollout.gate_service.sources import parse_sources

    named = parse_sources(sources)
    require_free(host, port)
    output.result(
        {"host": host, "port": port, "sources": sorted(named)},
        f"gates on http://{host}:{port} for {', '.join(sorted(named))}",
    )
    sys.stdout.flush()
    serve(named, host=host, port=port, pods=pods)
