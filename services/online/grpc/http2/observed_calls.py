"""Observability of gRPC calls: request ids and traces are in the metadata."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from bundle.errors import MlctlError
from services.online.grpc.http2.head import CallHead
from services.online.http.fields import fields_of
from services.online.models.served_model import ServedModel
from services.online.observability.calls import GRPC, RequestRecord
from services.online.observability.ids import RequestIds

if TYPE_CHECKING:
    from services.online.grpc.http2.call import GrpcCall


class GrpcCalls:
    """Report the calls of one model to its observer, if it has one."""

    def __init__(self, host: ServedModel) -> None:
        self._host = host
        self._ids = RequestIds()

    def begin(self, size: Callable[[], int] | None, call: GrpcCall) -> RequestRecord | None:
        """Return the record of a request of `size` bytes, or None if nothing of it is recorded."""
        if self._host.observer is None or not self._host.observer.active:
            return None
        fields = fields_of([(name.encode(), _bytes(value)) for name, value in call.metadata])
        request_id = self._ids.of(fields.get(b"x-request-id"))
        traceparent, tracestate = fields.get(b"traceparent"), fields.get(b"tracestate")
        seen = self._host.observer.begin(GRPC, request_id, traceparent, tracestate)
        if seen is not None and size is not None:
            seen.bytes_in = size()
        return seen

    def begin_call(self, head: CallHead, size: int) -> RequestRecord | None:
        """Return the record of a call of `size` bytes, or None if nothing of it is recorded."""
        observer = self._host.observer
        if observer is None or not observer.active:
            return None
        fields = fields_of(head.fields)
        request_id = self._ids.of(fields.get(b"x-request-id"))
        traceparent, tracestate = fields.get(b"traceparent"), fields.get(b"tracestate")
        record = observer.begin(GRPC, request_id, traceparent, tracestate)
        if record is not None:
            record.bytes_in = size
        return record

    def rejected(self, error: MlctlError, call: GrpcCall) -> None:
        """Count and report a call that was rejected before its message was read."""
        self._host.count(GRPC, error)
        with suppress(MlctlError):  # metadata that is invalid: then it has no id
            self.ended(self.begin(None, call), error)

    def ended(self, seen: RequestRecord | None, error: BaseException | None) -> None:
        """Report that the request failed, or that its stream ended."""
        if seen is not None and self._host.observer is not None:
            self._host.observer.ended(seen, error)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
