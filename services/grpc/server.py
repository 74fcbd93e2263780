"""The V2 protocol over gRPC, in the worker's own event loop, sharing the host with HTTP.

Beside it are the models' typed services, and the standard ones of health and reflection.
Statuses come from the error table. The port is shared (SO_REUSEPORT), so that several workers
can answer on it; a message above the body limit never reaches us, compressed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from services.batching.budget import Hold
from services.describe import (
    is_ready,
    metadata,
    refuse_change,
    repository_index,
    server_metadata,
)
from services.grpc.health import HEALTH_SERVICE, Health
from services.grpc.models import Asking, GrpcModels
from services.grpc.stream import StreamInfer
from services.grpc.unary import Handler, ask, counted, unary
from services.hosts import Serving
from services.lean_grpc.desk import InferDesk
from services.lean_grpc.desks import InferDesks
from services.lean_grpc.sending import MAX_STREAMS
from services.lean_grpc.server import LeanServer
from services.observe.grpc_calls import GrpcCalls
from services.ports import port_taken
from services.secure.grpc_gate import TokenInterceptor
from services.secure.tls import Tls
from services.statistics import model_config, model_statistics
from services.typed.service import TypedService, typed_services
from services.v2.messages import SERVICE, Method, make_pool, methods
from services.v2.wire import invalid


class GrpcServer:
    """One gRPC server for the models of one process; `stop` lets open calls end."""

    def __init__(self, host: Serving, address: str, port: int, tls: Tls | None = None) -> None:
        self._host = host
        self._models = GrpcModels(host)
        self._methods = methods()
        self._server = _make_server(host)
        self._desks: dict[str, InferDesk] = {}
        if isinstance(self._server, LeanServer):
            kind = self._methods["ModelInfer"].response
            self._desks = {
                each.host.name: InferDesk(each.host, each.codec, kind) for each in self._models.all
            }
            desks = list(self._desks.values())
            self._server.add_desk(desks[0] if len(desks) == 1 else InferDesks(desks))
        typed = typed_services(self._models)
        handlers = (self._handlers(), *(service.handler() for service in typed))
        self._server.add_generic_rpc_handlers(handlers)
        self._health = Health(host, SERVICE, *(service.name for service in typed))
        health_pb2_grpc.add_HealthServicer_to_server(  # type: ignore[no-untyped-call]
            self._health, self._server
        )
        _reflect(self._server, typed)
        self.port = _bind(self._server, address, port, tls)

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    def announce_stop(self) -> None:
        """Tell those who watch the health that it ends, before `stop` ends it."""
        self._health.stop()

    async def drain(self, seconds: float) -> None:
        """Send clients elsewhere while the models still answer what is on its way; `stop` follows.

        gRPC's own server cannot do one without the other.
        """
        if isinstance(self._server, LeanServer):
            await self._server.drain(seconds)

    async def stop(self, grace: float) -> None:
        """Announce it, accept no more calls and cancel those still open after `grace` seconds."""
        self.announce_stop()
        await self._server.stop(grace)

    def _handlers(self) -> Any:
        answers: dict[str, Handler] = {
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
        handlers = {
            name: _unary(self._methods[name], self._parsed(name, answer))
            for name, answer in answers.items()
        }
        handlers["ModelInfer"] = _unary(self._methods["ModelInfer"], self._infer)
        name, response = "ModelStreamInfer", self._methods["ModelInfer"].response
        stream = StreamInfer(self._models, self._methods[name], response)
        handlers[name] = stream.handler()
        return grpc.method_handlers_generic_handler(  # type: ignore[no-untyped-call]
            SERVICE, handlers
        )

    def _response(self, method: str, /, **fields: Any) -> Any:
        return self._methods[method].response(**fields)

    async def _server_live(self, _request: Any, _context: Any) -> Any:
        return self._response("ServerLive", live=self._host.live)

    async def _server_ready(self, _request: Any, _context: Any) -> Any:
        return self._response("ServerReady", ready=self._host.ready)

    async def _model_ready(self, request: Any, _context: Any) -> Any:
        ready = is_ready(self._host, request.name, request.version)
        return self._response("ModelReady", ready=ready)

    async def _server_metadata(self, _request: Any, _context: Any) -> Any:
        return self._response("ServerMetadata", **server_metadata())

    async def _model_metadata(self, request: Any, _context: Any) -> Any:
        document = metadata(self._host, request.name, request.version)
        return self._response("ModelMetadata", **document)

    async def _model_config(self, request: Any, _context: Any) -> Any:
        host = self._host.find(request.name, request.version)
        return self._response("ModelConfig", config=model_config(host))

    async def _model_statistics(self, request: Any, _context: Any) -> Any:
        hosts = self._host.hosts
        if request.name:
            hosts = self._host.find(request.name, request.version).hosts
        return self._response("ModelStatistics", **model_statistics(*hosts))

    async def _repository_index(self, request: Any, _context: Any) -> Any:
        models = repository_index(self._host, ready=request.ready)
        return self._response("RepositoryIndex", models=models)

    async def _repository_load(self, _request: Any, _context: Any) -> Any:
        refuse_change("load")

    async def _repository_unload(self, _request: Any, _context: Any) -> Any:
        refuse_change("unload")

    async def _infer(self, message: bytes, context: Any) -> Any:
        return await counted(
            self._models, message, context, lambda asking: self._ask(message, context, asking)
        )

    async def _ask(self, message: bytes, context: Any, asking: Asking) -> Any:
        start = perf_counter()
        request = _parse(self._methods["ModelInfer"], message)
        model = asking.of(self._models.find(request.model_name, request.model_version))
        decoded = model.codec.decode(request)
        parse = perf_counter() - start
        kind = self._methods["ModelInfer"].response
        response = await ask(
            model,
            asking,
            decoded,
            context,
            parse,
            lambda answer: model.codec.encode(kind, decoded, answer.outputs, answer.parameters),
        )
        if self._desks:
            self._desks[model.host.name].learn(message, request, decoded)
        return response

    def _parsed(self, name: str, answer: Handler) -> Handler:
        """`answer`, which takes a request, as one that takes a message."""

        async def parse_first(message: bytes, context: Any) -> Any:
            with Hold(self._host.inflight) as hold:
                hold.grow(len(message))
                return await answer(_parse(self._methods[name], message), context)

        return parse_first


def _make_server(host: Serving) -> grpc.aio.Server:
    if host.settings.lean_grpc:
        return LeanServer(host)
    options = [
        ("grpc.max_receive_message_length", host.settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # Alone it shares with nobody: else a second server would get some of its calls.
        ("grpc.so_reuseport", int(host.settings.workers > 1)),
        ("grpc.max_allowed_incoming_connections", host.settings.max_connections),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
    ]
    refused = GrpcCalls(host.hosts[0]).refused
    gates = [TokenInterceptor(host.access, refused)] if host.access.required else []
    server: grpc.aio.Server = grpc.aio.server(options=options, interceptors=gates)
    return server


def _parse(method: Method, message: bytes) -> Any:
    """The request in `message`; INVALID_INPUT if that is none."""
    try:
        return method.request.FromString(message)
    except DecodeError:
        raise invalid(f"the message is not a {method.request.DESCRIPTOR.name}") from None


def _unary(method: Method, handler: Handler) -> Any:
    return unary(method.name, method.response, handler)


def _reflect(server: Any, typed: Sequence[TypedService]) -> None:
    """Let clients such as grpcurl ask which services and messages there are."""
    own = [service.name for service in typed]
    names = (SERVICE, *own, HEALTH_SERVICE, reflection.SERVICE_NAME)
    files = [service.file() for service in typed]
    pool = make_pool(health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, files=files)
    reflection.enable_server_reflection(names, server, pool)  # type: ignore[no-untyped-call]


def _bind(server: Any, address: str, port: int, tls: Tls | None) -> int:
    target = f"{address}:{port}"
    try:
        if tls is None:
            bound = int(server.add_insecure_port(target))
        else:
            lean = isinstance(server, LeanServer)
            credentials = tls.context() if lean else tls.grpc_credentials()
            bound = int(server.add_secure_port(target, credentials))
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise port_taken(address, port)
    return bound
