"""Infer calls of one message: run the model, record the stages, count the outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from services.online.batching.admission import Hold
from services.online.batching.executor import Answer
from services.online.grpc.http2.call import GrpcCall
from services.online.grpc.models import GrpcModel, GrpcModels, RequestContext
from services.online.observability.calls import GRPC
from services.protocol.priority import PRIORITY_HEADER, Priority, priority_of_headers
from services.protocol.wire import InferRequest


async def counted(
    models: GrpcModels,
    message: bytes,
    call: GrpcCall,
    infer: Callable[[RequestContext], Awaitable[Any]],
) -> Any:
    """Return what `infer` answers to an infer message, and count its outcome."""
    context = RequestContext(models, call.head, len(message))
    try:
        with Hold(models.inflight) as hold:
            hold.grow(len(message))
            return await infer(context)
    except BaseException as error:
        context.ended(error)
        raise


async def ask(
    model: GrpcModel,
    context: RequestContext,
    request: InferRequest,
    call: GrpcCall,
    parse: float,
    encode: Callable[[Answer], Any],
) -> Any:
    """Return the response to `request`, which took `parse` seconds to parse."""
    served = model.served
    limits = [limit for limit in (call.time_remaining(), request.timeout) if limit is not None]
    priority = lane_of(call) or request.priority
    answer = await served.ask(request, min(limits, default=None), priority)
    start = perf_counter()
    response = encode(answer)
    serialize = perf_counter() - start
    served.answered(GRPC, parse, answer.queue_seconds, answer.infer_seconds, serialize)
    if served.observer is not None:
        model.calls.answered(
            context.head, context.size, context.started, request.inputs, answer,
            parse, serialize, response.ByteSize(),
        )  # fmt: skip
    return response


def lane_of(call: GrpcCall) -> Priority | None:
    """Return the lane that a call's metadata name, or None; INVALID_INPUT for an unknown lane."""
    return priority_of_headers(
        [
            value
            for name, value in call.head.metadata
            if name == PRIORITY_HEADER and isinstance(value, str)
        ]
    )
