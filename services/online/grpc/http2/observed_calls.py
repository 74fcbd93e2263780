"""Observability of gRPC calls: request ids and traces are in the metadata."""

from __future__ import annotations

from bundle.errors import MlctlError
from services.online.grpc.http2.head import CallHead
from services.online.http.fields import fields_of
from services.online.models.served_model import ServedModel
from services.online.observability.calls import GRPC, RequestRecord
from services.online.observability.ids import RequestIds


class GrpcCalls:
    """Report the calls of one model to its observer, if it has one."""

    def __init__(self, host: ServedModel) -> None:
        self._host = host
        self._ids = RequestIds()

    def begin(self, head: CallHead, size: int | None) -> RequestRecord | None:
        """Return the record of a request of `size` bytes, or None if nothing of it is recorded."""
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

    def rejected(self, error: MlctlError, head: CallHead) -> None:
        """Count and report a call that was rejected before its message was read."""
        self._host.count(GRPC, error)
        self.ended(self.begin(head, None), error)

    def ended(self, record: RequestRecord | None, error: BaseException | None) -> None:
        """Report that the request failed, or that its stream ended."""
        if record is not None and self._host.observer is not None:
            self._host.observer.ended(record, error)
