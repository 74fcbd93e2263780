"""ModelStreamInfer: the stream of responses to each request of a stream.

Requests are answered one after the other, so a response belongs to the oldest open request, and
gRPC's flow control slows a client that sends faster than it reads. A request that fails gets an
error in the stream, which goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from google.protobuf.message import DecodeError

from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.grpc.codec import wants_final
from mlctl.services.online.grpc.http2.call import GrpcCall, MethodHandler
from mlctl.services.online.grpc.models import GrpcModel, GrpcModels, RequestContext
from mlctl.services.online.grpc.unary import limits_of
from mlctl.services.online.security.public import failed, is_public
from mlctl.services.protocol.messages import Method
from mlctl.services.protocol.wire import invalid

CODE = "mlctl_code"
logger = logging.getLogger("mlctl.grpc")


class StreamInfer:
    """Answer the streams of a server; each request of a stream names its model."""

    def __init__(self, models: GrpcModels, method: Method, response: type[Any]) -> None:
        """`response` is the message class of one response, which `method` wraps."""
        self._models = models
        self._method = method
        self._response = response

    def handler(self) -> MethodHandler:
        """Return the handler of a stream."""
        return MethodHandler(self._serve, self._method.response.SerializeToString, streams=True)

    async def _serve(self, messages: AsyncIterator[bytes], call: GrpcCall) -> None:
        async for message in messages:
            await self._answer(message, call)

    async def _answer(self, message: bytes, call: GrpcCall) -> None:
        request = self._method.request()
        context = RequestContext(self._models, call.head, call.client, len(message))
        failure: BaseException | None = None
        try:
            self._models.access.charge(call.client)
            with Hold(self._models.inflight) as hold:
                hold.grow(len(message))
                request.MergeFromString(message)
                model = self._models.find(request.model_name, request.model_version)
                await self._send_pieces(context.of(model), request, call)
        except asyncio.CancelledError as error:
            failure = error
            raise
        except Exception as error:  # noqa: BLE001 - it is logged and sent
            failure = self._public(error)
            await call.write(self._rejection(failure, context.model, request.id))
        finally:
            context.ended(failure)

    async def _send_pieces(self, model: GrpcModel, request: Any, call: GrpcCall) -> None:
        decoded = model.codec.decode(request)
        with closing(model.served.stream(decoded.inputs, *limits_of(call, decoded))) as pieces:
            async for piece in pieces:
                response = model.codec.encode_piece(self._response, decoded, piece.outputs)
                await call.write(self._method.response(infer_response=response))
        if wants_final(request):
            final = model.codec.encode_final(self._response, decoded.id)
            await call.write(self._method.response(infer_response=final))

    def _rejection(self, failure: MlctlError, model: GrpcModel, request_id: str) -> Any:
        """Return the error where Triton's clients read it, with its code and the request's id."""
        response = model.codec.encode_final(self._response, request_id)
        response.parameters[CODE].string_param = failure.code.value
        return self._method.response(error_message=failure.message, infer_response=response)

    def _public(self, error: Exception) -> MlctlError:
        if isinstance(error, DecodeError):
            return invalid(f"the message is not a {self._method.request.DESCRIPTOR.name}")
        if is_public(error):
            return error
        logger.error("a request of a stream failed", exc_info=error)
        return failed()
