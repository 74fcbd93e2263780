"""The V2 protocol over gRPC, in the worker's own event loop, sharing the host with HTTP.

Statuses come from the error table. The port is shared (SO_REUSEPORT), so that several
workers can answer on it; a message above the body limit never reaches us.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from bundle import __version__
from bundle.errors import ErrorCode, MlctlError
from services.batcher import QueueFullError
from services.grpc_codec import GrpcCodec
from services.host import ModelHost, metadata_tensors, require_model
from services.http import EXTENSIONS, PLATFORM
from services.v2_messages import SERVICE, Method, methods

Handler = Callable[[Any, Any], Awaitable[Any]]
logger = logging.getLogger("mlctl.grpc")


class GrpcServer:
    """One gRPC server for one host; `stop` lets open calls end."""

    def __init__(self, host: ModelHost, address: str, port: int) -> None:
        self._host = host
        self._codec = GrpcCodec(host.name, host.digest, host.signature)
        self._methods = methods()
        options = [
            ("grpc.max_receive_message_length", host.settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 1),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.port = _bind(self._server, address, port)

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Accept no more calls and give open ones `grace` seconds."""
        await self._server.stop(grace)

    def _handlers(self) -> Any:
        answers: dict[str, Handler] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._counted(self._infer),
        }
        return grpc.method_handlers_generic_handler(  # type: ignore[no-untyped-call]
            SERVICE,
            {name: _unary(self._methods[name], answer) for name, answer in answers.items()},
        )

    def _response(self, method: str, /, **fields: Any) -> Any:
        return self._methods[method].response(**fields)

    async def _server_live(self, _request: Any, _context: Any) -> Any:
        return self._response("ServerLive", live=True)

    async def _server_ready(self, _request: Any, _context: Any) -> Any:
        return self._response("ServerReady", ready=self._host.ready)

    async def _model_ready(self, request: Any, _context: Any) -> Any:
        require_model(self._host, request.name, request.version)
        return self._response("ModelReady", ready=self._host.ready)

    async def _server_metadata(self, _request: Any, _context: Any) -> Any:
        return self._response(
            "ServerMetadata", name="mlctl", version=__version__, extensions=EXTENSIONS
        )

    async def _model_metadata(self, request: Any, _context: Any) -> Any:
        require_model(self._host, request.name, request.version)
        response = self._response(
            "ModelMetadata",
            name=self._host.name,
            versions=[self._host.digest],
            platform=PLATFORM,
        )
        for side, specs in metadata_tensors(self._host).items():
            for name, datatype, shape in specs:
                getattr(response, side).add(name=name, datatype=datatype, shape=shape)
        return response

    async def _infer(self, request: Any, context: Any) -> Any:
        require_model(self._host, request.model_name, request.model_version)
        decoded = self._codec.decode(request)
        answer = await self._host.infer(decoded.inputs, context.time_remaining())
        return self._codec.encode(self._methods["ModelInfer"].response, decoded, answer.outputs)

    def _counted(self, handler: Handler) -> Handler:
        async def counted(request: Any, context: Any) -> Any:
            failure: BaseException | None = None
            try:
                return await handler(request, context)
            except BaseException as error:
                failure = error
                raise
            finally:
                self._host.count("grpc", failure)

        return counted


def _unary(method: Method, handler: Handler) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except MlctlError as error:
            failure = error
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a %s call failed", method.name)
            failure = MlctlError(ErrorCode.INTERNAL, "the request failed in the server")
        return await _abort(context, failure)

    return grpc.unary_unary_rpc_method_handler(  # type: ignore[no-untyped-call]
        answer,
        request_deserializer=method.request.FromString,
        response_serializer=method.response.SerializeToString,
    )


async def _abort(context: Any, error: MlctlError) -> NoReturn:
    trailers = [("mlctl-code", error.code.value)]
    if isinstance(error, QueueFullError):
        trailers.append(("retry-after", str(max(1, math.ceil(error.retry_after)))))
    await context.abort(grpc.StatusCode[error.spec.grpc], error.message, tuple(trailers))
    raise AssertionError("abort raises")


def _bind(server: Any, address: str, port: int) -> int:
    try:
        bound = int(server.add_insecure_port(f"{address}:{port}"))
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise MlctlError(
            ErrorCode.PORT_TAKEN,
            f"gRPC cannot listen on {address}:{port}",
            "Set MLCTL_GRPC_PORT to a free port.",
        )
    return bound
