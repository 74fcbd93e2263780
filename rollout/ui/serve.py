"""Run the page's server in the foreground, on loopback."""

from __future__ import annotations

from contextlib import suppress

import uvicorn

from mlctl.rollout.domain.spec import LOOPBACK
from mlctl.rollout.ui.access import PageAccess
from mlctl.rollout.ui.app import ui_app

_CLOSE_SECONDS = 3


def serve(access: PageAccess) -> None:
    """Answer on the port of `access` until interrupted."""
    server: uvicorn.Server

    def stopping() -> bool:
        return server.should_exit

    server = uvicorn.Server(
        uvicorn.Config(
            ui_app(access, stopping),
            host=LOOPBACK,
            port=access.port,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        )
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C is how the command ends
        server.run()
