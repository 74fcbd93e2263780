"""What the bytes of messages mean: one module for each form, found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Signature

if TYPE_CHECKING:
    from services.stream.base import Payload

# What a broker's own limits are near; a message is held several times while it is scored.
MAX_BYTES = 8 << 20
MAX_ROWS = 65_536

# Each module has `open_payload(wanted, signature)`.
BY_NAME: Mapping[str, str] = MappingProxyType(
    {
        "json": "services.stream.payloads.jsonrows",
        "arrow": "services.stream.payloads.arrow",
        "raw": "services.stream.payloads.raw",
        "avro": "services.stream.payloads.avro",
        "protobuf": "services.stream.payloads.protobuf",
    }
)


@dataclass(frozen=True, slots=True)
class PayloadRequest:
    """The form of messages that a user wants.

    `keep` are fields of a message that its answer has as well. A message of more than
    `max_bytes`, or of more than `max_rows` rows, is refused before it is read. `map` says
    which columns feed which input, as `mlctl batch run --map`.
    """

    name: str = "json"
    keep: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
    max_rows: int = MAX_ROWS
    map: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def open_payload(wanted: PayloadRequest, signature: Signature) -> Payload:
    """The payload of `signature`; INVALID_INPUT if it cannot be had in that form.

    UNSUPPORTED_MODEL for a model that takes no rows.
    """
    module = BY_NAME.get(wanted.name)
    if module is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--payload {wanted.name}: there is no such form; there are {', '.join(BY_NAME)}",
        )
    if not signature.batched:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            "the model has no batch dimension, so messages cannot be its rows",
        )
    for name in wanted.keep:
        if any(spec.name == name for spec in signature.outputs):
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"--keep {name}: an output has that name as well"
            )
    payload: Payload = importlib.import_module(module).open_payload(wanted, signature)
    return payload
