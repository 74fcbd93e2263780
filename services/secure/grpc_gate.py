"""The token check in front of every gRPC method, before its message is read."""

from __future__ import annotations

from services.secure.tokens import Access
from services.v2.messages import SERVICE

# As over HTTP: probes need no token. A watch of the health is one, too.
_PROBES = frozenset(
    {
        f"/{SERVICE}/ServerLive",
        f"/{SERVICE}/ServerReady",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
# It may come from anybody, and is held while it comes.
_PROBE_BYTES = 1 << 10


def is_admitted(access: Access, method: str, authorization: bytes | None) -> bool:
    """Whether a call of `method`, as "/SERVICE/NAME", may be answered."""
    return is_probe(method) or access.allows(authorization)


def is_probe(method: str) -> bool:
    """Whether anybody may call `method`."""
    return method in _PROBES


def message_limit(method: str, most: int) -> int:
    """How many bytes a message of a call of `method` may have, where others may have `most`."""
    return min(_PROBE_BYTES, most) if is_probe(method) else most
