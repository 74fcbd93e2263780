"""Transports: one module for each kind of broker, found by a URL's scheme."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import StreamUrl, Transport

_TABLE = "mlctl.services.stream.transports.table"
_WEBHOOK = "mlctl.services.stream.transports.webhook"
# Each module has a `transport`, a mlctl.services.stream.base.Transport.
BY_SCHEME: Mapping[str, str] = MappingProxyType(
    {
        "sqlite": "mlctl.services.stream.transports.sqlite",
        "kafka": "mlctl.services.stream.transports.kafka",
        "redis": "mlctl.services.stream.transports.redis",
        "rediss": "mlctl.services.stream.transports.redis",
        "file": "mlctl.services.stream.transports.lines",
        "-": "mlctl.services.stream.transports.lines",
        "postgresql": _TABLE,
        "postgres": _TABLE,
        "https": _WEBHOOK,
        "http": _WEBHOOK,
    }
)


def transport_of(url: StreamUrl) -> Transport:
    """Return the transport of `url`; INVALID_INPUT for an unknown scheme."""
    name = BY_SCHEME.get(url.scheme)
    if url.scheme == "sqlite" and "table" in url.options:
        name = _TABLE
    if name is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"there is no transport for {url.scheme!r}",
            f"Use a URL such as sqlite://events.db#orders; schemes: {', '.join(BY_SCHEME)}.",
        )
    transport: Transport = importlib.import_module(name).transport
    return transport
