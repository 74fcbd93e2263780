"""Errors as gRPC statuses: code and sentence, and details that a program can act on.

The details are Google's standard ones (google.rpc.Status in `grpc-status-details-bin`):
ErrorInfo with the stable code, and RetryInfo exactly where a retry can help. Clients that
read no details find the same in the trailers `mlctl-code` and `retry-after`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.security.public import THROTTLED

DETAILS = "grpc-status-details-bin"
_DOMAIN = "mlctl"
# A server that starts or stops is another one, or ready, within about this time.
_UNAVAILABLE_SECONDS = 1.0
# A message is sent twice, once with three letters for each byte. Clients accept 8 KiB of trailers;
# with more they report a broken stream.
_LONGEST_MESSAGE = 1024

Trailer = tuple[str, str | bytes]


def status_of(error: MlctlError) -> tuple[int, str]:
    """Return the status of `error`: its number and its message."""
    return grpc.StatusCode[error.spec.grpc].value[0], _shortened(error)


def trailers(error: MlctlError) -> tuple[Trailer, ...]:
    """Return the trailing metadata that describes `error`."""
    seconds = _retry_seconds(error)
    details = [_info(error.code, error.hint)]
    found: list[Trailer] = [("mlctl-code", error.code.value)]
    if seconds is not None:
        whole, rest = divmod(max(1, math.ceil(seconds * 1000)), 1000)
        delay = Duration(seconds=whole, nanos=rest * 1_000_000)
        details.append(_pack(RetryInfo(retry_delay=delay)))
        found.append(("retry-after", str(max(1, math.ceil(seconds)))))
    if error.code is ErrorCode.RATE_LIMIT_EXCEEDED:
        found.append(THROTTLED)
    number = grpc.StatusCode[error.spec.grpc].value[0]
    status = Status(code=number, message=_shortened(error), details=details)
    return (*found, (DETAILS, status.SerializeToString()))


def _retry_seconds(error: MlctlError) -> float | None:
    if error.retry_after is not None:
        return error.retry_after
    return _UNAVAILABLE_SECONDS if error.code is ErrorCode.UNAVAILABLE else None


def _shortened(error: MlctlError) -> str:
    """Return the message, which may quote the caller at any length, cut to fit into trailers."""
    text = error.message.encode(errors="replace")
    if len(text) <= _LONGEST_MESSAGE:
        return text.decode()
    return text[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "..."


@lru_cache(maxsize=64)
def _info(code: ErrorCode, hint: str) -> Packed:
    return _pack(ErrorInfo(reason=code.value.upper(), domain=_DOMAIN, metadata={"hint": hint}))


def _pack(message: Any) -> Packed:
    packed = Packed()
    packed.Pack(message)
    return packed
