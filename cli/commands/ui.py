"""`mlctl ui`: a page in the browser that shows deployments and their rollouts."""

from __future__ import annotations

import sys

import click

from mlctl.cli.options import PORT
from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("name", required=False)
@click.option("--port", type=PORT, default=8600, help="Port to listen on.")
@reporting
def ui(output: CommandOutput, name: str | None, port: int) -> None:
    """Show deployment NAME, or all, on a page in the browser.

    The page has the chain with its digests, the traffic split and latencies, each gate's evidence,
    and buttons for pause, resume and roll back. The command runs until Ctrl-C and listens on
    127.0.0.1 only; the printed address has a token that is valid until it ends.
    """
    from mlctl.core.ports import require_free
    from mlctl.rollout.journal import paths
    from mlctl.rollout.journal.journal import Journal
    from mlctl.rollout.ui.access import PageAccess
    from mlctl.rollout.ui.serve import serve

    if name is not None:
        with Journal(paths.journal()) as journal:
            journal.deployment(name)
    require_free("127.0.0.1", port)
    access = PageAccess(port)
    path = "" if name is None else f"deployments/{name}"
    url = f"http://127.0.0.1:{port}/{path}#{access.token}"
    output.result({"url": url}, url)
    sys.stdout.flush()
    serve(access)
