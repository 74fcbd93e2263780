"""The BentoML service of a worker: our HTTP protocol and applications are before BentoML's own.

`/v2` and `/predict` never reach BentoML's application, which serves its pages and metrics. If a
model must not serve, the whole server ends; otherwise BentoML's supervisor would restart the
worker for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import bentoml

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import MlctlError
from mlctl.services.layout.bento_layout import BentoContents
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.calls import App
from mlctl.services.online.http.connection import accept_loop as accepting
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.declaration import ROUTE
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.http.invocations import INVOCATIONS, PING, SageMakerApp
from mlctl.services.online.http.openapi_page import OPENAPI_PATH, OpenApiPage
from mlctl.services.online.http.predict import PredictApp
from mlctl.services.online.http.token_gate import TokenGate
from mlctl.services.online.metrics.triton import as_counters
from mlctl.services.online.models.repository import Serving, serving_of
from mlctl.services.online.server.declared import declare_service
from mlctl.services.online.server.patches import hide_tracebacks, make_bento_app, use_protocol
from mlctl.services.online.server.watchdog import Watchdog
from mlctl.services.online.server.workers import (
    explain,
    forget_dead_workers,
    is_worker,
    loading,
    stop_supervisor,
    supervisor,
)
from mlctl.services.online.settings import ServerSettings

if TYPE_CHECKING:
    from mlctl.services.online.http.generate import GenerateApp

# For calls that do not ask the model, and for bodies that are still arriving: the model's requests
# are answered within their deadlines before.
_GRPC_GRACE_SECONDS = 5.0
# Most clients leave at once; the others get a second GOAWAY within this time.
_GRPC_FAREWELL_SECONDS = 1.5
logger = logging.getLogger("mlctl.service")


class Front:
    """Sends /v1, /v2, /predict, SageMaker's paths and our description to our applications.

    Only a language model has /v1. BentoML's application `other` gets the rest.
    """

    def __init__(self, serving: Serving, handlers: Sequence[InferHandler], other: App) -> None:
        self._serving = serving
        self._other = other
        self._v2 = V2App(serving, *handlers)
        self._page = OpenApiPage(serving)
        self._predict = PredictApp(serving)
        self._sagemaker = SageMakerApp(serving)
        self._generate: GenerateApp | None = None
        if any(each.generates for each in serving.models):
            from mlctl.services.online.http.generate import GenerateApp

            self._generate = GenerateApp(serving, *handlers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == "/metrics":
            forget_dead_workers()
            self._serving.publish()
        app = self._find(path) if scope["type"] == "http" else self._other
        await app(scope, receive, send)

    def _find(self, path: str) -> App:
        if self._generate is not None and self._generate.answers(path):
            return self._generate
        if path == "/v2" or path.startswith("/v2/"):
            return self._v2
        if path == ROUTE or path.startswith(f"{ROUTE}/"):
            return self._predict
        if path in {PING, INVOCATIONS}:
            return self._sagemaker
        return self._page if path == OPENAPI_PATH else self._other


class MlctlService(bentoml.Service[Any]):
    """A BentoML service whose ASGI application is behind `Front`."""

    def to_asgi(self, is_main: bool = True) -> Any:
        serving: Serving = self.inner.serving
        handlers = [InferHandler(each) for each in serving.models]
        serve_http(serving.settings, *handlers)
        front = Front(serving, handlers, make_bento_app(self, is_main=is_main))
        return gated(front, handlers[0], serving)


def gated(app: App, inference: InferHandler, serving: Serving) -> App:
    """Put `app` behind the token check if the server requires tokens."""
    return TokenGate(app, serving.access, inference) if serving.access.required else app


def serve_http(settings: ServerSettings, inference: InferHandler, *others: InferHandler) -> None:
    """Set the HTTP protocol, and the loop, of the server that this process starts next."""
    limited = infer_protocol(inference, *others)
    limits = {"max_connections": settings.max_connections, "idle_seconds": settings.keep_alive_s}
    loop_factory = f"{accepting.__name__}:{accepting.loop_factory.__name__}"
    use_protocol(type(limited.__name__, (limited,), limits), loop_factory)


def build_service(found: VerifiedBundle | BentoContents, settings: ServerSettings) -> MlctlService:
    """Return the service of one bundle or several; it loads the models when it starts."""
    packed = found if isinstance(found, BentoContents) else BentoContents((found,))
    inner = type("Model", (Worker,), {"serving": serving_of(packed, settings)})
    built: MlctlService = declare_service(packed, settings, inner, MlctlService)
    return built


class Worker:
    """What runs in a worker process; BentoML makes one and calls its hooks."""

    serving: Serving

    def __init__(self) -> None:
        self._grpc: GrpcServer | None = None
        self._watchdog: Watchdog | None = None

    @bentoml.on_startup
    async def start(self) -> None:
        _share_log()
        try:
            with loading(", ".join(repr(each.name) for each in self.serving.models)):
                await self.serving.start()
            await self._start_grpc()
            if is_worker():
                self._watchdog = Watchdog(
                    lambda: self.serving.live,
                    self.serving.abandon,
                    self.serving.settings.hang_s,
                    supervisor(),
                )
        except BaseException as error:
            logger.critical("%s", explain(error))
            if isinstance(error, MlctlError) and is_worker():
                hide_tracebacks()
            stop_supervisor(error)
            raise

    @bentoml.on_shutdown
    async def stop(self) -> None:
        self.serving.drain()
        if self._grpc is not None:
            self._grpc.announce_stop()
            await self._grpc.drain(_GRPC_FAREWELL_SECONDS)
        await self.serving.stop()
        if self._grpc is not None:
            await self._grpc.stop(_GRPC_GRACE_SECONDS)
        if self._watchdog is not None:
            self._watchdog.stop()

    async def __is_ready__(self) -> bool:
        return self.serving.ready

    async def __is_alive__(self) -> bool:
        return self.serving.live

    async def __metrics__(self, exposition: str) -> str:
        return as_counters(exposition)

    async def _start_grpc(self) -> None:
        settings = self.serving.settings
        if settings.grpc_port is not None:
            self._grpc = GrpcServer(
                self.serving, settings.grpc_host, settings.grpc_port, settings.tls
            )
            await self._grpc.start()
            logger.info("V2 gRPC on %s:%d", settings.grpc_host, self._grpc.port)


def _share_log() -> None:
    """Our log goes where BentoML's goes, at its level."""
    ours, theirs = logging.getLogger("mlctl"), logging.getLogger("bentoml")
    ours.setLevel(theirs.getEffectiveLevel())
    ours.handlers = list(theirs.handlers)
    ours.propagate = False
