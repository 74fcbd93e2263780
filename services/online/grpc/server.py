"""The V2 protocol over gRPC, in the worker's own event loop, sharing the models with HTTP.

Beside it are the models' typed services, and the standard ones of health and reflection.
Statuses come from the error table. Several workers share the port (SO_REUSEPORT).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from services.online.batching.admission import Hold
from services.online.grpc.health import HEALTH_SERVICE, HealthService
from services.online.grpc.http2.call import GrpcCall, MethodHandler
from services.online.grpc.http2.server import Http2Server
from services.online.grpc.infer_call import InferCalls
from services.online.grpc.models import GrpcModels, RequestContext
from services.online.grpc.stream import StreamInfer
from services.online.grpc.typed.service import TypedService, typed_services
from services.online.grpc.unary import ask, counted
from services.online.models.metadata import (
    is_ready,
    metadata,
    reject_change,
    repository_index,
    server_metadata,
)
from services.online.models.repository import Serving
from services.online.models.statistics import model_config, model_statistics
from services.online.security.tls import Tls
from services.protocol.messages import SERVICE, Method, make_pool, methods
from services.protocol.wire import invalid


class GrpcServer:
    """One gRPC server for the models of one process; `stop` lets open calls end."""

    def __init__(self, serving: Serving, address: str, port: int, tls: Tls | None = None) -> None:
        self._serving = serving
        self._models = GrpcModels(serving)
        self._methods = methods()
        typed = typed_services(self._models)
        self._health = HealthService(serving, SERVICE, *(service.name for service in typed))
        answered = {
            **self._v2_handlers(),
            **{service.path: service.handler() for service in typed},
            **self._health.handlers(),
            **_reflection(typed),
        }
        self._server = Http2Server(serving, answered, InferCalls(self._models).open)
        self.port = self._server.listen(address, port, None if tls is None else tls.context())

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    def announce_stop(self) -> None:
        """Announce the stop to clients that watch the health, before `stop`."""
        self._health.stop()

    async def drain(self, seconds: float) -> None:
        """Send clients elsewhere while open calls are answered; `stop` follows."""
        await self._server.drain(seconds)

    async def stop(self, grace: float) -> None:
        """Announce it, accept no more calls and cancel those still open after `grace` seconds."""
        self.announce_stop()
        await self._server.stop(grace)

    def _v2_handlers(self) -> dict[str, MethodHandler]:
        answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._repository_load,
            "RepositoryModelUnload": self._repository_unload,
        }
        found = {
            name: self._handler(name, self._parsed(name, each)) for name, each in answers.items()
        }
        found["ModelInfer"] = self._handler("ModelInfer", self._infer)
        name, response = "ModelStreamInfer", self._methods["ModelInfer"].response
        found[name] = StreamInfer(self._models, self._methods[name], response).handler()
        return {f"/{SERVICE}/{name}": method for name, method in found.items()}

    def _handler(
        self, name: str, answer: Callable[[bytes, GrpcCall], Awaitable[Any]]
    ) -> MethodHandler:
        return MethodHandler(answer, self._methods[name].response.SerializeToString)

    def _response(self, method: str, /, **fields: Any) -> Any:
        return self._methods[method].response(**fields)

    async def _server_live(self, _request: Any) -> Any:
        return self._response("ServerLive", live=self._serving.live)

    async def _server_ready(self, _request: Any) -> Any:
        return self._response("ServerReady", ready=self._serving.ready)

    async def _model_ready(self, request: Any) -> Any:
        ready = is_ready(self._serving, request.name, request.version)
        return self._response("ModelReady", ready=ready)

    async def _server_metadata(self, _request: Any) -> Any:
        return self._response("ServerMetadata", **server_metadata())

    async def _model_metadata(self, request: Any) -> Any:
        document = metadata(self._serving, request.name, request.version)
        return self._response("ModelMetadata", **document)

    async def _model_config(self, request: Any) -> Any:
        serving = self._serving.find(request.name, request.version)
        return self._response("ModelConfig", config=model_config(serving))

    async def _model_statistics(self, request: Any) -> Any:
        models = self._serving.models
        if request.name:
            models = self._serving.find(request.name, request.version).models
        return self._response("ModelStatistics", **model_statistics(*models))

    async def _repository_index(self, request: Any) -> Any:
        models = repository_index(self._serving, ready=request.ready)
        return self._response("RepositoryIndex", models=models)

    async def _repository_load(self, _request: Any) -> Any:
        reject_change("load")

    async def _repository_unload(self, _request: Any) -> Any:
        reject_change("unload")

    async def _infer(self, message: bytes, call: GrpcCall) -> Any:
        return await counted(
            self._models, message, call, lambda context: self._ask(message, call, context)
        )

    async def _ask(self, message: bytes, call: GrpcCall, context: RequestContext) -> Any:
        start = perf_counter()
        request = _parse(self._methods["ModelInfer"], message)
        model = context.of(self._models.find(request.model_name, request.model_version))
        decoded = model.codec.decode(request)
        parse = perf_counter() - start
        kind = self._methods["ModelInfer"].response
        return await ask(
            model,
            context,
            decoded,
            call,
            parse,
            lambda answer: model.codec.encode(kind, decoded, answer.outputs, answer.parameters),
        )

    def _parsed(
        self, name: str, answer: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[bytes, GrpcCall], Awaitable[Any]]:
        """`answer`, which takes a request, as one that takes a message."""

        async def parse_first(message: bytes, _call: GrpcCall) -> Any:
            with Hold(self._serving.inflight) as hold:
                hold.grow(len(message))
                return await answer(_parse(self._methods[name], message))

        return parse_first


def _parse(method: Method, message: bytes) -> Any:
    """The request in `message`; INVALID_INPUT if that is none."""
    try:
        return method.request.FromString(message)
    except DecodeError:
        raise invalid(f"the message is not a {method.request.DESCRIPTOR.name}") from None


def _reflection(typed: Sequence[TypedService]) -> dict[str, MethodHandler]:
    """Let clients such as grpcurl ask which services and messages there are."""
    own = [service.name for service in typed]
    names = (SERVICE, *own, HEALTH_SERVICE, reflection.SERVICE_NAME)
    files = [service.file() for service in typed]
    pool = make_pool(health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, files=files)
    bare: Any = reflection  # its classes have no types
    servicer = bare.aio.ReflectionServicer(names, pool=pool)
    method = MethodHandler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
        reflection_pb2.ServerReflectionRequest.FromString,
        streams=True,
    )
    return {f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": method}
