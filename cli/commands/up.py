"""`mlctl up`: a deployment on this machine."""

from __future__ import annotations

import click

from cli.output import Output, reporting


@click.command()
@click.argument("name")
@click.argument("bento")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@reporting
def up(output: Output, name: str, bento: str, host: str, port: int) -> None:
    """Start a deployment NAME that serves BENTO.

    Returns when it answers. HTTP and gRPC share one port, behind Envoy. Everything runs
    detached; a Bento or a proxy that dies is started again. `mlctl down NAME` stops it.
    """
    from cli.revisions import find_revision
    from rollout import deployments

    revision = find_revision(bento)
    output.note(f"Starting {name} with {revision.bento} ...")
    deployments.up(name, revision, port, host=host)
    url = f"http://{host}:{port}"
    if output.as_json:
        output.document(
            {"name": name, "url": url, "bento": revision.bento, "digest": revision.digest}
        )
        return
    output.line(f"{name} serves {revision.bento} on {url} (HTTP and gRPC)")
    output.note(f"V2: POST {url}/v2/models/{revision.name}/infer    typed: POST {url}/predict")
