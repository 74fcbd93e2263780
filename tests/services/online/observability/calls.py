"""Requests that are done, as the path of a request tells them."""

from __future__ import annotations

import numpy as np

from mlctl.bundle.sampling import Sampling
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.observability.calls import RequestRecord

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01".encode()


def seen(
    request_id: bytes = b"r1",
    protocol: str = "http",
    *,
    sampling: Sampling | None = None,
    traceparent: bytes | None = TRACEPARENT,
    tracestate: bytes | None = None,
) -> RequestRecord:
    record = RequestRecord(protocol, request_id, traceparent)
    record.traced, record.sampling, record.tracestate = True, sampling, tracestate
    return record


def done(
    request: RequestRecord | None = None, code: str = "ok", at: float = 1_700_000_000.5
) -> RequestRecord:
    record = request or seen()
    record.at, record.seconds, record.code = at, 0.02, code
    if code == "ok":
        record.parse, record.queue, record.infer, record.serialize = 0.001, 0.002, 0.003, 0.004
        record.rows, record.batch_rows, record.bytes_out = 2, 8, 64
    return record


def answer(outputs: dict[str, np.ndarray]) -> Answer:
    (rows,) = {len(output) for output in outputs.values()}
    return Answer(outputs, 0.002, 0.003, 8, rows=rows)
