"""Where streams live: one module for each broker, found by a place's scheme."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import install_hint
from services.stream.base import StreamUrl, Transport

# Each module has `transport`, a services.stream.base.Transport.
BY_SCHEME: Mapping[str, str] = MappingProxyType(
    {
        "sqlite": "services.stream.transports.sqlite",
        "kafka": "services.stream.transports.kafka",
        "redis": "services.stream.transports.redis",
        "rediss": "services.stream.transports.redis",
        "file": "services.stream.transports.jsonl",
        "precomputed": "services.stream.transports.precomputed",
        "-": "services.stream.transports.jsonl",
    }
)


def transport_of(place: StreamUrl) -> Transport:
    """The transport of `place`; INVALID_INPUT if its scheme is none that we know."""
    name = BY_SCHEME.get(place.scheme)
    if name is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"there is no transport for {place.scheme!r}",
            f"Give a place such as sqlite://events.db#orders; known are: {', '.join(BY_SCHEME)}.",
        )
    try:
        transport: Transport = importlib.import_module(name).transport
    except ModuleNotFoundError as error:
        extra = name.rpartition(".")[2]
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"streams at {place.scheme}:// need the package {error.name}",
            install_hint(extra),
        ) from error
    return transport
