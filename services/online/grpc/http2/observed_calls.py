"""Observability of gRPC calls: request ids and traces are in the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np

from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.grpc.http2.head import CallHead
from mlctl.services.online.http.responses import RequestIds
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.observability.calls import GRPC, OK


class GrpcCalls:
    """Report the calls of one model to its observer, if it has one that is active.

    `started` is when the message of a call, of `size` bytes, arrived: a time of `perf_counter`.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._ids = RequestIds()

    def answered(
        self,
        head: CallHead,
        size: int,
        started: float,
        inputs: Mapping[str, np.ndarray],
        answer: Answer,
        parse: float,
        serialize: float,
        bytes_out: int,
        client: str,
    ) -> None:
        """Report a call of `client` with one answer of `bytes_out` bytes.

        The other times are seconds.
        """
        observer = self._served.observer
        if observer is None or not observer.active:
            return
        headers = head.per_call
        request_id = self._ids.of(headers.get(b"x-request-id"))
        log = observer.log_alone
        if log is None:
            observer.finished(
                GRPC, request_id, headers, started, size, inputs, answer, parse, serialize,
                bytes_out, client,
            )  # fmt: skip
            return
        shared = GRPC, OK, None, answer.queue_seconds, answer.infer_seconds, answer.batch_rows
        traceparent, ended = headers.get(b"traceparent"), perf_counter()
        log.answered(
            (shared, answer.rows, request_id, traceparent, client, started, ended, size, bytes_out)
        )

    def ended(
        self,
        head: CallHead,
        size: int | None,
        started: float,
        error: BaseException | None,
        client: str = "",
    ) -> None:
        """Report that a call of `client` failed, or that its stream ended."""
        observer = self._served.observer
        if observer is None or not observer.active:
            return
        headers = head.per_call
        record = observer.begin(
            GRPC,
            self._ids.of(headers.get(b"x-request-id")),
            headers.get(b"traceparent"),
            headers.get(b"tracestate"),
        )
        if record is not None:
            record.bytes_in, record.started, record.client = size, started, client
            observer.ended(record, error)

    def rejected(self, error: MlctlError, head: CallHead, client: str = "") -> None:
        """Count and report a call that was rejected before its message was read."""
        self._served.count(GRPC, error, client)
        self.ended(head, None, perf_counter(), error, client)
