"""The Bento service: `bentoml serve` and `bentoml build` import `service` from here.

The bundle is $MLCTL_BUNDLE, else what lies beside this package (as in a Bento).
Importing verifies it, so a Bento whose bundle was altered does not start.
"""

from __future__ import annotations

import os
import sys

from bundle.errors import MlctlError
from bundle.variables import unknown_variables
from services.online.server.patches import inherited_listener
from services.online.server.seam import (
    MlctlService,
    build_service,
    explain,
    is_worker,
    stop_supervisor,
)
from services.online.server.service_bundle import find_trusted_bundles
from services.online.server.workers import join_server, listen_alone
from services.online.settings import load_settings


def _build() -> MlctlService:
    settings = load_settings()
    if is_worker():
        join_server(settings)
        if settings.workers > 1:
            listen_alone(inherited_listener())
    else:
        for sentence in unknown_variables(os.environ, type(settings).model_fields):
            print(f"Warning: {sentence}", file=sys.stderr, flush=True)
    return build_service(find_trusted_bundles(settings), settings)


try:
    service = _build()
except MlctlError as error:
    print(explain(error), file=sys.stderr, flush=True)
    stop_supervisor(error)
    raise SystemExit(error.spec.exit_code) from None
