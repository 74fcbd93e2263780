"""The V2 protocol over gRPC, in the worker's own event loop, sharing the models with HTTP.

Beside it are the models' typed services, and the standard ones of health and reflection.
Statuses come from the error table. Several workers share the port (SO_REUSEPORT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from mlctl.core.tls import TlsFiles
from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.grpc.health import HealthService
from mlctl.services.online.grpc.http2.call import GrpcCall, MethodHandler
from mlctl.services.online.grpc.http2.server import Http2Server
from mlctl.services.online.grpc.infer_call import InferCalls
from mlctl.services.online.grpc.model_stream_infer import StreamInfer
from mlctl.services.online.grpc.models import GrpcModel, GrpcModels, RequestContext
from mlctl.services.online.grpc.reflection import reflection_handlers
from mlctl.services.online.grpc.typed.service import typed_services
from mlctl.services.online.grpc.unary import infer_handler
from mlctl.services.online.models.metadata import (
    is_ready,
    metadata,
    reject_change,
    repository_index,
    server_metadata,
)
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.models.statistics import model_config, model_statistics
from mlctl.services.protocol.messages import SERVICE, Method, methods
from mlctl.services.protocol.wire import InferRequest, invalid


class GrpcServer:
    """One gRPC server for the models of one process; `stop` lets open calls end."""

    def __init__(
        self, serving: Serving, address: str, port: int, tls: TlsFiles | None = None
    ) -> None:
        self._serving = serving
        self._models = GrpcModels(serving)
        typed = typed_services(self._models)
        self._health = HealthService(serving, SERVICE, *(service.name for service in typed))
        answered = {
            **self._v2_handlers(),
            **{service.path: service.handler for service in typed},
            **self._health.handlers(),
            **reflection_handlers(typed),
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
        serving, models, infer = self._serving, self._models, methods()["ModelInfer"]

        def decode(message: bytes, context: RequestContext) -> InferRequest:
            request = _parse(infer, message)
            model = context.of(models.find(request.model_name, request.model_version))
            return model.codec.decode(request)

        def encode(model: GrpcModel, request: InferRequest, answer: Answer) -> Any:
            return model.codec.encode(infer.response, request, answer.outputs, answer.parameters)

        answers: dict[str, Callable[[Any], Mapping[str, Any]]] = {
            "ServerLive": lambda _: {"live": serving.live},
            "ServerReady": lambda _: {"ready": serving.ready},
            "ModelReady": lambda asked: {"ready": is_ready(serving, asked.name, asked.version)},
            "ServerMetadata": lambda _: server_metadata(),
            "ModelMetadata": lambda asked: metadata(serving, asked.name, asked.version),
            "ModelConfig": lambda asked: {
                "config": model_config(serving.find(asked.name, asked.version))
            },
            "ModelStatistics": lambda asked: model_statistics(
                *(serving.find(asked.name, asked.version) if asked.name else serving).models
            ),
            "RepositoryIndex": lambda asked: {
                "models": repository_index(serving, ready=asked.ready)
            },
            "RepositoryModelLoad": lambda _: reject_change("load"),
            "RepositoryModelUnload": lambda _: reject_change("unload"),
        }
        found = {name: self._document(methods()[name], each) for name, each in answers.items()}
        found["ModelInfer"] = infer_handler(models, decode, encode, infer.response)
        stream = StreamInfer(models, methods()["ModelStreamInfer"], infer.response)
        found["ModelStreamInfer"] = stream.handler()
        return {f"/{SERVICE}/{name}": handler for name, handler in found.items()}

    def _document(
        self, method: Method, describe: Callable[[Any], Mapping[str, Any]]
    ) -> MethodHandler:
        """Return the handler of a method; `describe` returns the fields of its response."""

        async def answer(message: bytes, _call: GrpcCall) -> Any:
            with Hold(self._serving.inflight) as hold:
                hold.grow(len(message))
                return method.response(**describe(_parse(method, message)))

        return MethodHandler(answer, method.response.SerializeToString)


def _parse(method: Method, message: bytes) -> Any:
    """Return the request in `message`; INVALID_INPUT if it is not one."""
    try:
        return method.request.FromString(message)
    except DecodeError:
        raise invalid(f"the message is not a {method.request.DESCRIPTOR.name}") from None
