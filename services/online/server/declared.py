"""The BentoML service as a supervisor and a build need it: declared, without what serves.

Their processes load neither the protocols nor the models: that takes a third of their time.
"""

from __future__ import annotations

import re
import ssl
import sys
from functools import partial
from typing import Any

import bentoml

from mlctl.core.errors import MlctlError
from mlctl.core.tls import CIPHERS, TlsFiles
from mlctl.services.layout.bento_layout import BentoContents
from mlctl.services.online.http.declaration import declare_predict, predict_routes
from mlctl.services.online.server.workers import explain, prepare_server
from mlctl.services.online.settings import ServerSettings


def declare_service(
    packed: BentoContents,
    settings: ServerSettings,
    worker: type = object,
    service_class: type[bentoml.Service[Any]] = bentoml.Service,
) -> Any:
    """Return a `service_class` of the models in `packed`; its worker processes make a `worker`."""
    settings.check()
    attributes = {"prepare_server": bentoml.on_deployment(partial(_prepare_server, settings))}
    for number, (route, each) in enumerate(predict_routes(packed.models).items()):
        attributes[f"predict_{number}" if number else "predict"] = declare_predict(each, route)
    tls = settings.tls
    options = {} if tls is None else {"ssl": ssl_options(tls)}
    service: Any = bentoml.service  # mypy takes it for a module of that name
    decorate = service(
        name=re.sub(r"[^a-z0-9]", "_", packed.name),
        service_class=service_class,
        workers=settings.workers,
        **options,
    )
    return decorate(type("Model", (worker,), attributes))


def ssl_options(files: TlsFiles) -> dict[str, Any]:
    """Return BentoML's option `ssl`. Python's default is at least TLS 1.2."""
    options: dict[str, Any] = {
        "enabled": True,
        "certfile": str(files.cert.absolute()),
        "keyfile": str(files.key.absolute()),
        "ciphers": CIPHERS,
    }
    if files.client_ca is not None:
        options["ca_certs"] = str(files.client_ca.absolute())
        options["cert_reqs"] = int(ssl.CERT_REQUIRED)
    return options


def _prepare_server(settings: ServerSettings) -> None:
    try:
        prepare_server(settings)
    except MlctlError as error:
        print(explain(error), file=sys.stderr, flush=True)
        raise SystemExit(error.spec.exit_code) from None
