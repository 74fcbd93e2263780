"""`GET /openapi.json`: what this server answers, described for people and for tools."""

from __future__ import annotations

from mlctl.services.online.http.calls import HttpCall, Message, Receive, Send
from mlctl.services.online.http.responses import Response, make_response
from mlctl.services.online.models.repository import Serving

OPENAPI_PATH = "/openapi.json"


class OpenApiPage:
    """An ASGI application that answers with the document of a server's models."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._text = b""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        await call.answer(self._answer(call))

    async def _answer(self, call: HttpCall) -> Response:
        call.require("GET", "HEAD")
        self._text = self._text or self._make()
        return make_response(200, b"application/json", self._text)

    def _make(self) -> bytes:
        from mlctl.services.online.openapi.document import document, to_text
        from mlctl.services.online.openapi.model import describe

        serving = self._serving
        models = [
            describe(each.name, each.digest, each.signature, each.missing)
            for each in serving.models
        ]
        made = document(models, version=serving.digest, token=serving.access.required)
        return to_text(made).encode()
