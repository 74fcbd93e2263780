"""The Bento service: `bentoml serve` and `bentoml build` import `service` from here.

The bundle is $MLCTL_BUNDLE, else what lies beside this package (as in a Bento).
Importing verifies it, so a Bento whose bundle was altered does not start.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from mlctl.core.errors import MlctlError
from mlctl.core.garbage import rare_collection
from mlctl.core.variables import unknown_variables


def _build() -> Any:
    from mlctl.services.online.server.service_bundle import find_trusted_bundles
    from mlctl.services.online.server.workers import is_worker, join_server, listen_alone
    from mlctl.services.online.settings import load_settings

    settings = load_settings()
    if not is_worker():
        from mlctl.services.online.server.declared import declare_service

        for sentence in unknown_variables(os.environ, type(settings).model_fields):
            print(f"Warning: {sentence}", file=sys.stderr, flush=True)
        return declare_service(find_trusted_bundles(settings), settings)
    from mlctl.services.online.server.patches import inherited_listener
    from mlctl.services.online.server.seam import build_service

    join_server(settings)
    if settings.workers > 1:
        listen_alone(inherited_listener())
    return build_service(find_trusted_bundles(settings), settings)


try:
    with rare_collection():  # `_build` imports all of a server
        service = _build()
except Exception as error:
    from mlctl.services.online.server.workers import explain, stop_supervisor

    print(explain(error), file=sys.stderr, flush=True)
    stop_supervisor(error)  # it would start a worker that cannot be imported again and again
    if isinstance(error, MlctlError):
        raise SystemExit(error.spec.exit_code) from None
    raise
