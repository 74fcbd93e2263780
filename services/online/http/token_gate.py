"""The token check in front of an ASGI application, before the body is read."""

from __future__ import annotations

from functools import partial

from mlctl.core.errors import MlctlError
from mlctl.services.access import Access
from mlctl.services.online.http.calls import CLIENT, App, HttpCall, Message, Receive, Send
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.http.openai_errors import is_v1, openai_error
from mlctl.services.online.http.responses import Response
from mlctl.services.online.observability.calls import RequestRecord

# Probes have no token, and their answers reveal nothing else.
PROBES = frozenset(
    {"/livez", "/readyz", "/healthz", "/ping", "/v2/health/live", "/v2/health/ready"}
)
_POLICY_VIOLATION = 1008


class TokenGate:
    """ASGI middleware: UNAUTHENTICATED for requests without a token, except to `PROBES`.

    `inference` counts them. The others get their client's name in the scope.
    """

    def __init__(self, app: App, access: Access, inference: InferHandler) -> None:
        self._app = app
        self._access = access
        self._inference = inference

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        call = HttpCall(scope, receive, send)
        try:
            scope[CLIENT] = self._access.client_of(call.headers.get(b"authorization"))
        except MlctlError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            else:
                reject = self._reject_openai if is_v1(call.path) else None
                await call.serve(self._inference, partial(_raise, error), reject)
        else:
            await self._app(scope, receive, send)

    def _reject_openai(
        self, error: BaseException, request_id: bytes, client: str, record: RequestRecord | None
    ) -> Response:
        return openai_error(self._inference.reject(error, request_id, client, record))


async def _raise(error: MlctlError) -> None:
    raise error
