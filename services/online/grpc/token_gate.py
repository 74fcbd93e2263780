"""Which gRPC calls need a token, checked before a message is read, and how large probes may be."""

from __future__ import annotations

from services.protocol.messages import SERVICE
from services.runtime.access import Access

# As over HTTP, probes need no token. A watch of the health is a probe, too.
_PROBES = frozenset(
    {
        f"/{SERVICE}/ServerLive",
        f"/{SERVICE}/ServerReady",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
# Any client may send one, and the server keeps it until it is complete.
_PROBE_BYTES = 1 << 10


def is_admitted(access: Access, method: str, authorization: bytes | None) -> bool:
    """Return whether a call of `method`, as "/SERVICE/NAME", needs no token or has a valid one."""
    return is_probe(method) or access.allows(authorization)


def is_probe(method: str) -> bool:
    """Return whether `method` needs no token."""
    return method in _PROBES


def message_limit(method: str, max_bytes: int) -> int:
    """Return the limit of a message of `method` in bytes; `max_bytes` is that of other methods."""
    return min(_PROBE_BYTES, max_bytes) if is_probe(method) else max_bytes
