"""A request as those who watch it know it: from its headers on, and when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bundle.errors import ERROR_TABLE, ErrorCode, MlctlError
from bundle.sampling import Sampling

OK = "ok"
GONE = "gone"
HTTP, GRPC, PREDICT = "http", "grpc", "predict"
# What nginx calls a request whose client closed the connection.
_CLIENT_CLOSED = 499


class RequestRecord:
    """A request that is watched; `bytes_in` are its body's once that is known.

    `traced` is whether its caller records it, `sampling` what is to be written of its payload.
    """

    __slots__ = (
        "bytes_in", "client", "protocol", "request_id", "sampling", "started", "traced",
        "traceparent", "tracestate",
    )  # fmt: skip

    def __init__(
        self,
        protocol: str,
        request_id: bytes,
        traceparent: bytes | None,
        client: str | None,
        *,
        traced: bool,
        sampling: Sampling | None,
        tracestate: bytes | None = None,
    ) -> None:
        self.protocol = protocol
        self.request_id = request_id
        self.traceparent = traceparent
        self.tracestate = tracestate
        self.client = client
        self.traced = traced
        self.sampling = sampling
        self.bytes_in: int | None = None
        self.started = perf_counter()


class Stages(NamedTuple):
    """The seconds that one answered request spent in each stage; None if nobody measured it."""

    parse: float | None
    queue: float
    infer: float
    serialize: float | None


class Done(NamedTuple):
    """A watched request that ended at Unix time `at`, `seconds` after its headers came.

    `code` is "ok", "gone" or an error code; the rest is known of answered requests only, but for
    `told`, the HTTP status of a refusal where it is another one than the code's.
    """

    seen: RequestRecord
    at: float
    seconds: float
    code: str
    stages: Stages | None = None
    rows: int | None = None
    batch_rows: int | None = None
    bytes_out: int | None = None
    told: int | None = None

    @property
    def status(self) -> int | str:
        """The HTTP status, or gRPC's by its name."""
        if self.told is not None:
            return self.told
        grpc = self.seen.protocol == GRPC
        if self.code == OK:
            return "OK" if grpc else 200
        if self.code == GONE:
            return "CANCELLED" if grpc else _CLIENT_CLOSED
        spec = ERROR_TABLE[ErrorCode(self.code)]
        return spec.grpc if grpc else spec.http


def outcome_of(error: BaseException | None) -> str:
    """How a request ended: None is success, a cancellation is a caller who left."""
    if error is None:
        return OK
    if isinstance(error, asyncio.CancelledError):
        return GONE
    return (error.code if isinstance(error, MlctlError) else ErrorCode.INTERNAL).value


class RecordedPayload(NamedTuple):
    """What was asked and answered in one request of `rows` rows, to be written as `sampling` says.

    Tensors that are not to be written are not in it; all of it holds `size` bytes.
    """

    request_id: str
    at: float
    sampling: Sampling
    rows: int
    size: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
