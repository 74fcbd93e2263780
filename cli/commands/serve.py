"""`mlctl serve`: one Bento on this machine, without a deployment."""

from __future__ import annotations

import os
import sys

import click

from bundle.home import bento_environment
from cli.output import Output, reporting


@click.command()
@click.argument("bento")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
@click.option(
    "--grpc-port", type=click.IntRange(1, 65535), help="Answer V2 gRPC here too.  [default: off]"
)
@reporting
def serve(output: Output, bento: str, host: str, port: int, grpc_port: int | None) -> None:
    """Serve BENTO in the foreground, without a deployment.

    BENTO is NAME:VERSION, or NAME for the newest.
    With --json, one document says where it will listen before the server's own log begins
    on stderr.
    """
    from rollout.launcher import require_free
    from services.store import find_bento

    found = find_bento(bento)
    ports = {"http": port, **({"grpc": grpc_port} if grpc_port else {})}
    require_free(host, *ports.values())
    if host not in ("127.0.0.1", "localhost", "::1"):
        output.note(f"Warning: {host} is reachable from other machines, without authentication.")
    if output.as_json:
        output.document({"bento": found.tag, "host": host, "ports": ports})
    else:
        output.line(f"{found.tag} on http://{host}:{port}")
    sys.stdout.flush()
    environment = {**os.environ, **bento_environment()}
    if grpc_port:
        environment |= {"MLCTL_GRPC_PORT": str(grpc_port), "MLCTL_GRPC_HOST": host}
    command = [sys.executable, "-m", "bentoml", "serve", found.tag]
    os.execve(sys.executable, [*command, "--host", host, "--port", str(port)], environment)  # noqa: S606 - becomes the server, from an argument list
