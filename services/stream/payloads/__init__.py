"""Payload formats of messages: one module for each, found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from mlctl.bundle.tensors import NO_MISSING, MissingValues, Signature
from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.services.stream.base import Payload

# Near the brokers' own limits; a message is in memory several times while it is scored.
MAX_BYTES = 8 << 20
MAX_ROWS = 65_536

# As one of the fields to keep: all fields of the message.
KEEP_ALL = "*"

# Each module has `open_payload(request, signature)`.
BY_NAME: Mapping[str, str] = MappingProxyType(
    {
        "json": "mlctl.services.stream.payloads.jsonrows",
        "raw": "mlctl.services.stream.payloads.raw",
        "avro": "mlctl.services.stream.payloads.avro",
    }
)


@dataclass(frozen=True, slots=True)
class PayloadRequest:
    """The payload format of a run.

    `keep` are fields of a message that its answer has as well, or KEEP_ALL. A message of more than
    `max_bytes`, or of more than `max_rows` rows, is rejected. `missing` says which inputs may be
    null or absent.
    """

    name: str = "json"
    keep: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
    max_rows: int = MAX_ROWS
    missing: MissingValues = NO_MISSING
    options: Mapping[str, str] = field(default_factory=dict)


def open_payload(request: PayloadRequest, signature: Signature) -> Payload:
    """Return the payload for `signature`; INVALID_INPUT if the format cannot represent it.

    UNSUPPORTED_MODEL for a model without a batch dimension.
    """
    module = BY_NAME.get(request.name)
    if module is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--payload {request.name}: unknown format; formats: {', '.join(BY_NAME)}",
        )
    if not signature.batched:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            "the model has no batch dimension, so messages cannot be its rows",
        )
    if KEEP_ALL in request.keep and request.name != "json":
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "--keep '*': only json messages can keep all fields",
            "Name the fields to keep.",
        )
    for name in request.keep:
        if any(spec.name == name for spec in signature.outputs):
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"--keep {name}: an output has that name as well"
            )
    payload: Payload = importlib.import_module(module).open_payload(request, signature)
    return payload
