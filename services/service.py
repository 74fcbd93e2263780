"""The Bento service: `bentoml serve` and `bentoml build` import `service` from here.

The bundle is $MLCTL_BUNDLE, else the folder `model` beside this package (where a Bento
has it). Importing verifies it, so a Bento whose bundle was altered does not start.
"""

from __future__ import annotations

import sys

from bundle.errors import MlctlError
from services.bento import MlctlService, build_service, explain, stop_supervisor
from services.service_bundle import find_bundle
from services.settings import load_settings


def _build() -> MlctlService:
    settings = load_settings()
    return build_service(find_bundle(settings), settings)


try:
    service = _build()
except MlctlError as error:
    print(explain(error), file=sys.stderr, flush=True)
    stop_supervisor()
    raise SystemExit(error.spec.exit_code) from None
