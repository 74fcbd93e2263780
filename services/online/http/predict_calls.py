"""Calls of `/predict` that end before the model is asked: counted and logged like all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bundle.errors import ERROR_TABLE, ErrorCode, MlctlError
from services.online.http.app import App, Message, Receive, Send
from services.online.http.fields import fields_of
from services.online.models.served_model import ServedModel
from services.online.observability.calls import PREDICT, RequestRecord
from services.online.observability.ids import RequestIds
from services.online.security.public import CALLERS

_CALL = "mlctl.predict"
_IDS = RequestIds()


class PredictCall:
    """One call; `asked` is whether the model was, which then counts it. `seen` is for observers."""

    __slots__ = ("asked", "seen")

    def __init__(self, seen: RequestRecord | None) -> None:
        self.asked = False
        self.seen = seen


def begin(host: ServedModel, scope: Mapping[str, Any]) -> PredictCall:
    """The call with this scope is there."""
    headers = fields_of(scope.get("headers", ()))
    if host.observer is None:
        return PredictCall(None)
    request_id = _IDS.of(headers.get(b"x-request-id"))
    traceparent, tracestate = headers.get(b"traceparent"), headers.get(b"tracestate")
    seen = host.observer.begin(PREDICT, request_id, traceparent, tracestate)
    length = headers.get(b"content-length", b"")
    if seen is not None and length.isdigit():
        seen.bytes_in = int(length)
    return PredictCall(seen)


def take(host: ServedModel, scope: Mapping[str, Any]) -> RequestRecord | None:
    """The model is asked: whoever asks it tells observers how that ends."""
    call: PredictCall = scope.get(_CALL) or begin(host, scope)
    call.asked = True
    return call.seen


class PredictCalls:
    """ASGI middleware around BentoML's application, which refuses some calls by itself.

    `routes` has the model that is asked at each path.
    """

    def __init__(self, app: App, routes: Mapping[str, ServedModel]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        host = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if host is None:
            await self._app(scope, receive, send)
            return
        call = scope[_CALL] = begin(host, scope)

        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start" and not call.asked:
                _ended(host, call, message["status"])
            await send(message)

        await self._app(scope, receive, forward)


def _ended(host: ServedModel, call: PredictCall, status: int) -> None:
    if status < 400:
        return  # what is no call of the model, such as OPTIONS
    error = MlctlError(_code(status), "the call was refused")
    host.count(PREDICT, error)
    if call.seen is not None and host.observer is not None:
        host.observer.ended(call.seen, error, status)


def _code(status: int) -> ErrorCode:
    """The code that callers know of this status, or one like it."""
    known = (code for code in ErrorCode if code in CALLERS and ERROR_TABLE[code].http == status)
    return next(known, ErrorCode.INVALID_INPUT if status < 500 else ErrorCode.INTERNAL)
