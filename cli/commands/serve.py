"""`mlctl serve`: serve one Bento in the foreground."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from mlctl.cli.options import PORT, takes
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.security_options import FILE, SecurityOptions
from mlctl.core.home import bento_environment


@click.command()
@click.argument("bento")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    type=PORT,
    default=3000,
    help="HTTP port to listen on.",
)
@click.option("--grpc-port", type=PORT, help="gRPC port to listen on.  [default: no gRPC]")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Server processes that share the ports.  [default: MLCTL_WORKERS, or 1]",
)
@click.option(
    "--token-file", type=FILE, help="Require one of the tokens in this file from callers."
)
@takes(security=SecurityOptions)
@reporting
def serve(
    output: CommandOutput,
    /,
    bento: str,
    host: str,
    port: int,
    grpc_port: int | None,
    workers: int | None,
    *,
    token_file: Path | None,
    security: SecurityOptions,
) -> None:
    """Serve BENTO in the foreground until Ctrl-C.

    BENTO is NAME:VERSION, or NAME for the newest. With --json, one document with the addresses is
    printed before the server starts; its log goes to stderr.
    """
    from mlctl.bento.signed import verify_bento
    from mlctl.core.ports import require_all_free
    from mlctl.services.layout.bento_store import find_bento
    from mlctl.services.online.settings import load_settings

    found = find_bento(bento)
    chosen = {
        "MLCTL_TOKEN_FILE": token_file,
        "MLCTL_TLS_CERT": security.tls_cert,
        "MLCTL_TLS_KEY": security.tls_key,
        "MLCTL_TLS_CLIENT_CA": security.tls_client_ca,
        "MLCTL_WORKERS": workers,
        "MLCTL_GRPC_PORT": grpc_port,
        "MLCTL_GRPC_HOST": host if grpc_port else None,
    }
    os.environ.update({name: str(value) for name, value in chosen.items() if value})
    settings = load_settings()
    settings.check()
    addresses = {"http": (host, port), **settings.listen_addresses}
    require_all_free(*addresses.values())
    verify_bento(found, settings.require_signature)
    security.warn_exposure(output, host)
    if output.as_json:
        ports = {name: port for name, (_, port) in addresses.items()}
        output.document({"bento": found.tag, "host": host, "ports": ports})
    else:
        scheme = "http" if settings.tls_cert is None else "https"
        output.line(f"{found.tag} on {scheme}://{host}:{port}")
    sys.stdout.flush()
    environment = {**os.environ, **bento_environment()}
    command = [sys.executable, "-m", "mlctl.cli.bentoml_server", "serve", found.tag]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it can handle Ctrl-C
    os.execve(sys.executable, [*command, "--host", host, "--port", str(port)], environment)  # noqa: S606 - becomes the server, from an argument list
