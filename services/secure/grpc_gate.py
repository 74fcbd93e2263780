"""The token check in front of every gRPC method, before its message is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from bundle.errors import MlctlError
from services.grpc.status import abort
from services.http.fields import fields_of
from services.secure.tokens import Access, unauthenticated
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
_TOKEN = b"authorization"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """UNAUTHENTICATED for a call whose metadata shows no token; `refused` is told of each."""

    def __init__(self, access: Access, refused: Callable[[MlctlError, Any], None]) -> None:
        self._access = access
        self._refused = refused

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        authorization = _authorization(handler_call_details.invocation_metadata)
        if is_admitted(self._access, handler_call_details.method, authorization):
            return await continuation(handler_call_details)
        # As a stream, whatever the method is: then nothing of the call is read.
        return grpc.stream_stream_rpc_method_handler(self._refuse)  # type: ignore[no-untyped-call]

    async def _refuse(self, _messages: Any, context: Any) -> AsyncIterator[bytes]:
        error = unauthenticated()
        self._refused(error, context)
        await abort(context, error)
        yield b""  # type: ignore[unreachable]  # makes it the stream that gRPC asks for


def is_admitted(access: Access, method: str, authorization: bytes | None) -> bool:
    """Whether a call of `method`, as "/SERVICE/NAME", may be answered."""
    return is_probe(method) or access.allows(authorization)


def is_probe(method: str) -> bool:
    """Whether anybody may call `method`."""
    return method in _PROBES


def message_limit(method: str, most: int) -> int:
    """How many bytes a message of a call of `method` may have, where others may have `most`."""
    return min(_PROBE_BYTES, most) if is_probe(method) else most


def _authorization(metadata: Any) -> bytes | None:
    shown = [value.encode() for name, value in metadata or () if name == "authorization"]
    return fields_of([(_TOKEN, value) for value in shown]).get(_TOKEN)
