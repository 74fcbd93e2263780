"""The token check in front of an ASGI application, before the body is read."""

from __future__ import annotations

from collections.abc import Callable

from bundle.errors import MlctlError
from services.online.http.app import App, Message, Receive, Send, close_if_expecting, send_response
from services.online.http.fields import fields_of
from services.online.http.responses import Response
from services.runtime.access import Access, unauthenticated

# Probes have no token, and their answers reveal nothing else.
PROBES = frozenset(
    {"/livez", "/readyz", "/healthz", "/ping", "/v2/health/live", "/v2/health/ready"}
)
_POLICY_VIOLATION = 1008
Reject = Callable[[MlctlError, Message], Response]


class TokenGate:
    """ASGI middleware: UNAUTHENTICATED for requests without a token, except to `PROBES`.

    `reject` makes the response to the error and the request's scope.
    """

    def __init__(self, app: App, access: Access, reject: Reject) -> None:
        self._app = app
        self._access = access
        self._reject = reject

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        headers = fields_of(scope["headers"])
        if self._access.allows(headers.get(b"authorization")):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            response = self._reject(unauthenticated(), scope)
            close_if_expecting(headers, response)
            await send_response(send, response)
