"""`mlctl gate`: the gates as a service, for rollouts that Argo Rollouts or Flagger drive."""

from __future__ import annotations

import sys

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.option(
    "--source",
    "sources",
    multiple=True,
    required=True,
    metavar="NAME=WHAT",
    help="A server that may be compared: NAME=http://HOST:PORT/metrics, or "
    "NAME=service:NAMESPACE/SERVICE for all pods of a Service. At least two.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8085, show_default=True)
@click.option(
    "--sessions", type=click.IntRange(1, 100_000), default=200, show_default=True, help="At most."
)
@click.option(
    "--expire-hours",
    type=click.FloatRange(0.01, 8760),
    default=168.0,
    show_default=True,
    help="Forget a session that nobody asked about for so long.",
)
@click.option(
    "--pods",
    type=click.Choice(("api", "direct")),
    default="direct",
    show_default=True,
    help="Ask a Service's pods at their own addresses, or through the API server.",
)
@reporting
def gate(
    output: CommandOutput,
    /,
    sources: tuple[str, ...],
    host: str,
    port: int,
    sessions: int,
    expire_hours: float,
    pods: str,
) -> None:
    """Judge canaries that Argo Rollouts or Flagger drive, over HTTP, until interrupted.

    GET /gates/ID?blue=NAME&green=NAME answers success, failure or inconclusive as JSON;
    POST /flagger/HOOK answers by status. Only the sources named here are ever asked. What was
    seen of a rollout is kept on disk.
    """
    from rollout.drivers.local.ports import require_free
    from rollout.gate_service.run import serve
    from rollout.gate_service.sources import parse_sources

    named = parse_sources(sources)
    require_free(host, port)
    if output.as_json:
        output.document({"host": host, "port": port, "sources": sorted(named)})
    else:
        output.line(f"gates on http://{host}:{port} for {', '.join(sorted(named))}")
    sys.stdout.flush()
    serve(
        named,
        host=host,
        port=port,
        sessions=sessions,
        expire_seconds=expire_hours * 3600.0,
        pods=pods,
    )
