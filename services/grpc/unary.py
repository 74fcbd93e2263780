"""What unary calls share: errors become statuses, and an infer request is asked and counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import grpc

from services.batching.budget import Hold
from services.batching.shell import Answer
from services.grpc.models import Asking, GrpcModel, GrpcModels
from services.grpc.status import abort
from services.lanes import LANE_HEADER, Priority, named_lane
from services.observe.calls import Stages
from services.secure.public import failed, is_public
from services.v2.wire import InferRequest

Handler = Callable[[Any, Any], Awaitable[Any]]
logger = logging.getLogger("mlctl.grpc")


def unary(name: str, response: type[Any], handler: Handler) -> Any:
    """What gRPC calls for the method `name`; `handler` takes a message's bytes and the context."""

    async def answer(message: bytes, context: Any) -> Any:
        try:
            return await handler(message, context)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if is_public(error):
                failure = error
            else:
                logger.exception("a %s call failed", name)
                failure = failed()
        return await abort(context, failure)

    return grpc.unary_unary_rpc_method_handler(  # type: ignore[no-untyped-call]
        answer,  # given no deserializer: a message that is none is the caller's fault
        response_serializer=response.SerializeToString,
    )


async def counted(
    models: GrpcModels,
    message: bytes,
    context: Any,
    infer: Callable[[Asking], Awaitable[Any]],
) -> Any:
    """What `infer` answers to an infer message, which is counted by its outcome."""
    asking = Asking(models, message.__len__, context)
    failure: BaseException | None = None
    try:
        with Hold(models.inflight) as hold:
            hold.grow(len(message))
            return await infer(asking)
    except BaseException as error:
        failure = error
        asking.ended(error)
        raise
    finally:
        asking.count(failure)


async def ask(
    model: GrpcModel,
    asking: Asking,
    request: InferRequest,
    context: Any,
    parse: float,
    encode: Callable[[Answer], Any],
) -> Any:
    """The message of the model's answer to `request`, which took `parse` seconds to read."""
    host, seen = model.host, asking.seen
    limits = [limit for limit in (context.time_remaining(), request.timeout) if limit is not None]
    priority = lane_of(context) or request.priority
    answer = await host.ask(request, min(limits, default=None), priority)
    start = perf_counter()
    response = encode(answer)
    serialize = perf_counter() - start
    host.stages(parse, answer.queue_seconds, answer.infer_seconds, serialize)
    if seen is not None and host.observer is not None:
        stages = Stages(parse, answer.queue_seconds, answer.infer_seconds, serialize)
        host.observer.answered(seen, stages, request.inputs, answer, response.ByteSize())
    return response


def lane_of(context: Any) -> Priority | None:
    """The lane that a call's metadata name, if they do; INVALID_INPUT if there is no such lane."""
    metadata = context.invocation_metadata() or ()
    return named_lane([value for name, value in metadata if name == LANE_HEADER])
