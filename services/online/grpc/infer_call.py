"""A ModelInfer call that arrived whole: from its message to the scheduler and back.

Other calls, and those that arrive in pieces, are compressed or malformed, are `GrpcCall`s.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Protocol

from bundle.errors import MlctlError
from services.online.batching.admission import QueueFullError
from services.online.batching.budget import Hold
from services.online.batching.executor import Answer, Cancellable
from services.online.grpc.http2.head import HEADERS, CallHead, Fields, make_trailers
from services.online.grpc.http2.messages import PREFIX_BYTES
from services.online.grpc.http2.outbox import SendQueue
from services.online.grpc.infer_message import InferMessages
from services.online.grpc.models import GrpcModel, GrpcModels
from services.online.grpc.status import status_of, trailers
from services.online.observability.calls import GRPC
from services.online.security.public import failed, is_public
from services.protocol.messages import SERVICE
from services.protocol.priority import Priority
from services.protocol.wire import InferRequest

PATH = f"/{SERVICE}/ModelInfer"
logger = logging.getLogger("mlctl.grpc")


class InferConnection(Protocol):
    """The connection of an infer call."""

    outbox: SendQueue

    def over(self, call: InferCall) -> None:
        """Forget the call, which was answered."""


class InferCall(Hold):
    """One call in progress, as `ModelExecutor.enqueue` takes a request.

    It is its own share of the memory budget.
    """

    _request: InferRequest
    _head: CallHead
    _arrived: int
    _parse_seconds = 0.0
    # When the call arrived, by `perf_counter`; 0 without an observer.
    _started = 0.0
    _queued: Cancellable | None = None
    _answered = False

    def __init__(
        self, handler: InferCalls, connection: InferConnection, stream: int, model: GrpcModel
    ) -> None:
        self.inflight = handler.inflight
        self.stream = stream
        self._handler = handler
        self._connection = connection
        self.model = model

    def begin(self, head: CallHead, message: bytes) -> None:
        """Decode and queue the call whose message follows its prefix in `message`."""
        start = perf_counter()
        handler, arrived = self._handler, len(message) - PREFIX_BYTES
        observer = self.model.served.observer
        if observer is not None and observer.active:
            self._started, self._head, self._arrived = start, head, arrived
        try:
            if handler.access.required:
                handler.access.require(head.authorization)
            self.grow(arrived)
            if handler.rejecting and handler.is_single and b"priority" not in message:
                full = self.model.served.quick_reject(Priority.NORMAL, arrived)
                handler.rejecting = full is not None
                if full is not None:
                    raise full  # noqa: TRY301 - as the decoder does
            request = self._request = handler.messages.decode(message, self)
            if arrived > self.model.served.max_body_bytes:
                self.model.served.check_size(arrived)
            timeout = request.timeout
            if head.timeout_text is not None:
                seconds = head.timeout
                timeout = seconds if timeout is None or seconds is None else min(seconds, timeout)
            self._parse_seconds = perf_counter() - start
            self._queued = self.model.served.handle(request, self, timeout, request.priority)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self.set_exception(error)

    def set_result(self, answer: Answer, /) -> None:
        """Send the answer."""
        if self._answered:
            return
        start = perf_counter()
        model, request = self.model, self._request
        try:
            data = self._handler.messages.encode(model, request, answer.outputs, answer.parameters)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self.set_exception(error)
            return
        self._complete()
        connection = self._connection
        connection.outbox.answer(self.stream, data, self._handler.seconds)
        connection.over(self)
        served, parse = model.served, self._parse_seconds
        queue, infer = answer.queue_seconds, answer.infer_seconds
        serialize = perf_counter() - start
        served.answered(GRPC, parse, queue, infer, serialize)
        if self._started:
            model.calls.answered(
                self._head, self._arrived, self._started, request.inputs, answer,
                parse, serialize, len(data),
            )  # fmt: skip

    def set_exception(self, error: BaseException, /) -> None:
        """Send the status of `error`; an unexpected error shows no details."""
        if self._answered:
            return
        if not is_public(error):
            logger.error("a call of %s failed", PATH, exc_info=error)
            error = failed()
        self._report(error)
        self._reject(error)

    def leave(self) -> None:
        """Withdraw the call: its client disconnected or cancelled it."""
        if self._answered:
            return
        queued = self._queued
        self._complete()
        if queued is not None:
            queued.cancel()
        self._report(asyncio.CancelledError())

    def stop(self, reason: MlctlError) -> None:
        """End the call with the status of `reason`."""
        if self._answered:
            return
        if self._queued is not None:
            self._queued.cancel()
        self._report(reason)
        self._reject(reason)

    def _reject(self, error: MlctlError) -> None:
        if self._answered:
            return
        self._complete()
        fields = self._handler.rejection(error)
        connection, seconds = self._connection, self._handler.seconds
        connection.outbox.end(self.stream, fields, reset_unfinished=False, seconds=seconds)
        connection.over(self)

    def _report(self, error: BaseException) -> None:
        self.model.served.count(GRPC, error)
        if self._started:
            self.model.calls.ended(self._head, self._arrived, self._started, error)

    def _complete(self) -> None:
        self._answered = True
        self._queued = None  # it refers to this object, and a cycle would wait for the collector
        self.release()


class InferCalls:
    """Opens the infer calls of a server."""

    def __init__(self, models: GrpcModels) -> None:
        self.models = models
        self.messages = InferMessages(models)
        self._max_body_bytes = models.max_body_bytes
        self.inflight = models.inflight
        # Whether a call was rejected since one found room in the queue.
        self.rejecting = False
        # Whether all calls are to one model, so that its queue may reject them unparsed.
        self.is_single = len(models.all) == 1
        self._rejection: tuple[MlctlError, Fields] | None = None
        self.access = models.access
        self.seconds = models.settings.deadline_ms / 1000

    def rejection(self, error: MlctlError) -> Fields:
        """Return the headers of a failed call; in overload many calls get the same error."""
        self.rejecting = self.rejecting or isinstance(error, QueueFullError)
        if self._rejection is None or self._rejection[0] is not error:
            fields = HEADERS + make_trailers(*status_of(error), trailers(error))
            self._rejection = error, fields
        return self._rejection[1]

    def open(
        self, connection: InferConnection, stream: int, head: CallHead, data: bytes
    ) -> InferCall | None:
        """Return a call, if it is one uncompressed message of ModelInfer; `begin` follows."""
        size = len(data) - PREFIX_BYTES
        if not head.plain or head.path != PATH or size < 0 or size > self._max_body_bytes:
            return None
        if data[0] or int.from_bytes(data[1:PREFIX_BYTES]) != size:
            return None
        return InferCall(self, connection, stream, self.models.default)
