"""Infer calls of one message and one response: run the model, observe the stages, count the end.

`InferCall` answers the plain ones of the V2 protocol; the others, and the typed ones, come here.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.grpc.http2.call import GrpcCall, MethodHandler
from mlctl.services.online.grpc.models import GrpcModel, GrpcModels, RequestContext
from mlctl.services.online.observability.calls import GRPC
from mlctl.services.protocol.priority import PRIORITY_HEADER, Priority, priority_of_headers
from mlctl.services.protocol.wire import InferRequest


def infer_handler(
    models: GrpcModels,
    decode: Callable[[bytes, RequestContext], InferRequest],
    encode: Callable[[GrpcModel, InferRequest, Answer], Any],
    response: type[Any],
) -> MethodHandler:
    """Return the handler of an infer method.

    `decode` reads a message and sets the model in the context, `encode` makes the response.
    """

    async def answer(message: bytes, call: GrpcCall) -> Any:
        context = RequestContext(models, call.head, call.client, len(message))
        try:
            models.access.charge(call.client)
            with Hold(models.inflight) as hold:
                hold.grow(len(message))
                return await infer(message, context, call)
        except BaseException as error:
            context.ended(error)
            raise

    async def infer(message: bytes, context: RequestContext, call: GrpcCall) -> Any:
        start = perf_counter()
        request = decode(message, context)
        parse = perf_counter() - start
        model = context.model
        served = model.served
        found = await served.ask(request, *limits_of(call, request))
        start = perf_counter()
        made = encode(model, request, found)
        serialize = perf_counter() - start
        queue, ran = found.queue_seconds, found.infer_seconds
        served.answered(GRPC, parse, queue, ran, serialize, context.client)
        if served.observer is not None:
            model.calls.answered(
                context.head, context.size, context.started, request.inputs, found,
                parse, serialize, made.ByteSize(), context.client,
            )  # fmt: skip
        return made

    return MethodHandler(answer, response.SerializeToString)


def limits_of(call: GrpcCall, request: InferRequest) -> tuple[float | None, Priority]:
    """Return the seconds that the client waits at most, if it says so, and its priority.

    INVALID_INPUT for an unknown priority in the call's metadata.
    """
    limits = [limit for limit in (call.time_remaining(), request.timeout) if limit is not None]
    named = [
        value
        for name, value in call.head.metadata
        if name == PRIORITY_HEADER and isinstance(value, str)
    ]
    return min(limits, default=None), priority_of_headers(named) or request.priority
