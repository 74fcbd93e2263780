"""A request as the observer records it: from its headers on, and when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple

import numpy as np

from mlctl.bundle.sampling import Sampling
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError

OK = "ok"
GONE = "gone"
HTTP, GRPC, PREDICT = "http", "grpc", "predict"
# What nginx calls a request whose client closed the connection.
_CLIENT_CLOSED = 499


class RequestRecord:
    """A request that is recorded, from its headers on.

    `client` is the name of its token, empty without tokens and for an unknown one. `traced` is
    whether its caller records the trace, `sampling` how its tensors are recorded, and
    `bytes_in` the size of its body once that is known. When it has ended, `at` is the Unix time of
    that, `seconds` after its headers arrived, and `code` is "ok", "gone" or an error code.
    `reported_status` is the HTTP status of a rejection whose status is not that of its code. The
    rest is known of answered requests only: the seconds in each stage, of which `parse` and
    `serialize` may not be measured, the rows, and the size of the response.

    Attributes that are not known belong to the class: a request sets few.
    """

    at: float
    seconds: float
    code: str
    client = ""
    traced = False
    tracestate: bytes | None = None
    sampling: Sampling | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    reported_status: int | None = None
    rows: int | None = None
    batch_rows: int | None = None
    parse: float | None = None
    queue: float | None = None
    infer: float | None = None
    serialize: float | None = None

    def __init__(self, protocol: str, request_id: bytes, traceparent: bytes | None) -> None:
        self.protocol = protocol
        self.request_id = request_id
        self.traceparent = traceparent
        self.started = perf_counter()

    @property
    def status(self) -> int | str:
        """The HTTP status, or gRPC's by its name."""
        if self.reported_status is not None:
            return self.reported_status
        return status_of(self.protocol, self.code)


def status_of(protocol: str, code: str) -> int | str:
    """Return the HTTP status, or gRPC's by its name, of requests that end with `code`."""
    grpc = protocol == GRPC
    if code == OK:
        return "OK" if grpc else 200
    if code == GONE:
        return "CANCELLED" if grpc else _CLIENT_CLOSED
    spec = ERROR_TABLE[ErrorCode(code)]
    return spec.grpc if grpc else spec.http


def outcome_of(error: BaseException | None) -> str:
    """Return how a request ended: None is success, a cancellation is a client that disconnected."""
    if error is None:
        return OK
    if isinstance(error, asyncio.CancelledError):
        return GONE
    return (error.code if isinstance(error, MlctlError) else ErrorCode.INTERNAL).value


class RecordedPayload(NamedTuple):
    """The tensors of one request of `rows` rows, to be written as `sampling` says.

    Redacted tensors are left out; the rest has `size` bytes.
    """

    request_id: str
    at: float
    sampling: Sampling
    rows: int
    size: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
