"""A ModelInfer call that arrived whole: from its message to the scheduler and back.

Other calls, and those that arrive in pieces, are compressed or malformed, are `GrpcCall`s.

Most requests of a client differ in their ids and raw tensors alone. Where these stand in a message
is kept, so that only they are read of the next message with the same bytes around them: a parse
takes a fourth of a small call's time. The response's fields but its id and its raw tensors are
encoded once for each shape of outputs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Hold, QueueFullError
from mlctl.services.online.batching.executor import Answer, Cancellable
from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.online.grpc.http2.connection import Connection
from mlctl.services.online.grpc.http2.head import HEADERS, CallHead, make_trailers
from mlctl.services.online.grpc.http2.hpack import encode
from mlctl.services.online.grpc.http2.messages import PREFIX_BYTES
from mlctl.services.online.grpc.models import GrpcModel, GrpcModels
from mlctl.services.online.grpc.status import status_of, trailers
from mlctl.services.online.observability.calls import GRPC
from mlctl.services.online.security.public import failed, is_public
from mlctl.services.protocol.messages import SERVICE, methods
from mlctl.services.protocol.priority import Priority
from mlctl.services.protocol.wire import (
    Declared,
    InferRequest,
    decode_raw,
    encode_raw,
    invalid,
    make_tuple,
)

_QUEUE_FULL = ErrorCode.QUEUE_FULL.value
_CACHED = 256
_MAX_FIXED_BYTES = 4096
_BYTES_FIELD = 2  # the wire type of strings, bytes and messages
_ID, _INPUTS, _RAW = 3, 5, 7
_FIELDS = range(1, 8)
_ID_TAG, _RAW_OUTPUT_TAG = b"\x1a", b"\x32"
# Where a field's content begins and ends in a message.
_Span = tuple[int, int]
PATH = f"/{SERVICE}/ModelInfer"
logger = logging.getLogger("mlctl.grpc")


class InferCall(Hold):
    """One call in progress, as `ModelExecutor.enqueue` takes a request.

    It is its own share of the memory budget.
    """

    _request: InferRequest
    _head: CallHead
    _arrived: int
    _parse_seconds = 0.0
    # The name of the caller's token.
    _client = ""
    # When the call arrived, by `perf_counter`; 0 without an observer.
    _started = 0.0
    _queued: Cancellable | None = None
    _answered = False

    def __init__(
        self, handler: InferCalls, connection: Connection, stream: int, model: GrpcModel
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
                self._client = handler.access.client_of(head.authorization)
                handler.access.charge(self._client)
            self.grow(arrived)
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
        connection.over(self.stream)
        served, parse = model.served, self._parse_seconds
        queue, infer = answer.queue_seconds, answer.infer_seconds
        serialize = perf_counter() - start
        client = self._client
        served.answered(GRPC, parse, queue, infer, serialize, client)
        if self._started:
            model.calls.answered(
                self._head, self._arrived, self._started, request.inputs, answer,
                parse, serialize, len(data), client,
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
        self._connection.reject(self.stream, self._handler.rejection(error))

    def _report(self, error: BaseException) -> None:
        client = self._client
        self.model.served.count(GRPC, error, client)
        if self._started:
            self.model.calls.ended(self._head, self._arrived, self._started, error, client)

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
        self._rejection: tuple[MlctlError, bytes] | None = None
        self.access = models.access
        self.seconds = models.settings.deadline_ms / 1000

    def rejection(self, error: MlctlError) -> bytes:
        """Return the block of a failed call; in overload many calls get the same error."""
        self.rejecting = self.rejecting or isinstance(error, QueueFullError)
        if self._rejection is None or self._rejection[0] is not error:
            fields = HEADERS + make_trailers(*status_of(error), trailers(error))
            self._rejection = error, encode(fields)
        return self._rejection[1]

    def open(self, connection: Connection, stream: int, head: CallHead, data: bytes) -> bool:
        """Begin or reject a call that is one uncompressed message of ModelInfer; else False.

        The head is a plain one.
        """
        size = len(data) - PREFIX_BYTES
        if head.path != PATH or size < 0 or size > self._max_body_bytes:
            return False
        if data[0] or int.from_bytes(data[1:PREFIX_BYTES]) != size:
            return False
        if self.rejecting and self._reject_unparsed(connection, stream, head, data):
            return True
        call = InferCall(self, connection, stream, self.models.default)
        connection.calls[stream] = call
        call.begin(head, data)
        return True

    def _reject_unparsed(
        self, connection: Connection, stream: int, head: CallHead, data: bytes
    ) -> bool:
        """Reject a call that the queue certainly rejects, if its message is like an earlier one.

        No object is made for it: in overload a rejection must cost less than an answer.
        """
        try:
            client = self.access.client_of(head.authorization)
        except MlctlError:
            return False
        header = self.messages.known_header(data)
        if header is None:
            return False
        served, size = header.model.served, len(data) - PREFIX_BYTES
        full = served.quick_reject(header.priority, size)
        if full is None:
            self.rejecting = False
            return False
        served.counted(GRPC, _QUEUE_FULL, client)
        if served.observer is not None and served.observer.active:
            header.model.calls.ended(head, size, perf_counter(), full, client)
        connection.reject(stream, self.rejection(full))
        return True


class MessageHeader(NamedTuple):
    """A request without its id and its raw tensors; `inputs` are in the order of the tensors."""

    model: GrpcModel
    inputs: tuple[Declared, ...]
    outputs: Mapping[str, bool]
    timeout: float | None
    priority: Priority


class InferMessages:
    """Decodes the ModelInfer requests of a server and encodes the responses."""

    def __init__(self, models: GrpcModels) -> None:
        self._models = models
        self._request = methods()["ModelInfer"].request
        self._response = methods()["ModelInfer"].response
        self._layouts: dict[int, _Layout] = {}
        self._outputs: dict[tuple[Any, ...], bytes] = {}

    def known_header(self, message: bytes) -> MessageHeader | None:
        """Return the header of a message like an earlier one, which follows its prefix, or None."""
        layout = self._layouts.get(len(message))
        return layout.header if layout is not None and layout.fits(message) else None

    def decode(self, message: bytes, call: InferCall) -> InferRequest:
        """Return the request in a ModelInferRequest, which follows its prefix in `message`.

        Sets the model of `call`. Raises MODEL_NOT_FOUND, and INVALID_INPUT with the tensor and the
        reason.
        """
        layout = self._layouts.get(len(message))
        if layout is not None and layout.fits(message):
            return _fill(layout, message, call)
        try:
            found = self._request.FromString(message[PREFIX_BYTES:])
        except DecodeError:
            raise _not_a_request() from None
        call.model = self._models.find(found.model_name, found.model_version)
        request = call.model.codec.decode(found)
        spans = _split(message)
        if spans is not None and not request.keys:
            declared = call.model.codec.declarations(found)
            header = MessageHeader(
                call.model, declared, request.outputs, request.timeout, request.priority
            )
            if len(self._layouts) >= _CACHED:
                self._layouts.clear()
            self._layouts[len(message)] = _layout(message, *spans, header)
        return request

    def encode(
        self,
        model: GrpcModel,
        request: InferRequest,
        outputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, str | float] | None = None,
    ) -> bytes:
        """Return the ModelInferResponse to `request`, serialized."""
        codec = model.codec
        if parameters:
            whole = codec.encode(self._response, request, outputs, parameters)
            serialized: bytes = whole.SerializeToString()
            return serialized
        key = (model.served.name, *[(name, outputs[name].shape) for name in request.outputs])
        described = self._outputs.get(key)
        if described is None:
            described = self._describe(codec, request, outputs)
            if len(self._outputs) >= _CACHED:
                self._outputs.clear()
            self._outputs[key] = described
        parts = [described]
        if request.id:
            identity = request.id.encode()
            parts += (_ID_TAG, _varint(len(identity)), identity)
        for name in request.outputs:
            data = encode_raw(codec.outputs[name].dtype, outputs[name])
            parts += (_RAW_OUTPUT_TAG, _varint(len(data)), data)
        return b"".join(parts)

    def _describe(
        self, codec: GrpcCodec, request: InferRequest, outputs: Mapping[str, np.ndarray]
    ) -> bytes:
        message = codec.encode(self._response, request._replace(id=""), outputs)
        message.ClearField("raw_output_contents")
        serialized: bytes = message.SerializeToString()
        return serialized


class _Layout(NamedTuple):
    """Where a message of one length has its id and tensors, and the bytes `fixed` between them.

    A message of that length with those bytes has the same fields in the same places.
    """

    fixed: tuple[tuple[slice, bytes], ...]
    identity: _Span
    raw: Sequence[_Span]
    header: MessageHeader

    def fits(self, message: bytes) -> bool:
        """Whether a message of the layout's length has it."""
        for span, content in self.fixed:  # noqa: SIM110 - a generator costs more than the rest
            if message[span] != content:
                return False
        return True


def _layout(
    message: bytes, identity: _Span, raw: Sequence[_Span], header: MessageHeader
) -> _Layout:
    at, fixed = PREFIX_BYTES, []
    for start, end in (*sorted((identity, *raw)), (len(message), len(message))):
        if at < start:
            fixed.append((slice(at, start), message[at:start]))
        at = end
    return _Layout(tuple(fixed), identity, raw, header)


def _fill(layout: _Layout, message: bytes, call: InferCall) -> InferRequest:
    """Return the request in a message that fits `layout`."""
    header = layout.header
    call.model = header.model
    start, end = layout.identity
    try:
        name = message[start:end].decode() if start < end else ""
    except UnicodeDecodeError:
        raise _not_a_request() from None
    inputs = {}
    for declared, (start, end) in zip(header.inputs, layout.raw, strict=True):
        inputs[declared.spec.name] = decode_raw(declared, message, start, end - start)
    head = header.outputs, header.timeout, header.priority
    return make_tuple(InferRequest, (name, inputs, *head, ()))


def _split(message: bytes) -> tuple[_Span, list[_Span]] | None:
    """Return where a request has its id and its raw tensors; None if it is unusual.

    A request without raw tensors is unusual, and so is one that is larger without them than
    `_MAX_FIXED_BYTES`: its layout would take memory.
    """
    raw: list[_Span] = []
    at, size = PREFIX_BYTES, len(message)
    identity = at, at
    while at < size:
        tag = message[at]
        field = tag >> 3
        if tag & 7 != _BYTES_FIELD or field not in _FIELDS or at + 1 >= size:
            return None
        length = message[at + 1]
        at += 2
        if length >= 0x80:
            length &= 0x7F
            for shift in (7, 14, 21, 28):
                if at >= size:
                    return None
                byte = message[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            else:
                return None
        end = at + length
        if end > size:
            return None
        if field == _RAW:
            raw.append((at, end))
        elif field == _ID:
            identity = at, end
        at = end
    fixed = size - sum([end - start for start, end in (identity, *raw)])
    return (identity, raw) if raw and fixed <= _MAX_FIXED_BYTES else None


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL = [bytes([value]) for value in range(0x80)]


def _not_a_request() -> MlctlError:
    return invalid("the message is not a ModelInferRequest")
