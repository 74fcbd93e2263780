"""`GET /openapi.json`: what this server answers, described for people and for tools."""

from __future__ import annotations

from services.online.http.app import Message, Receive, Send, send_error, send_response
from services.online.http.responses import MethodError, make_response
from services.online.models.repository import Serving

OPENAPI_PATH = "/openapi.json"


class OpenApiPage:
    """An ASGI application that answers with the document of a server's models."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._text = b""

    async def __call__(self, scope: Message, _receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await send_error(send, MethodError(("GET", "HEAD")))
            return
        await send_response(send, make_response(200, b"application/json", self._made()))

    def _made(self) -> bytes:
        """The document, built at its first request."""
        if not self._text:
            from services.online.openapi.document import document, to_text
            from services.online.openapi.model import describe

            serving = self._serving
            models = [
                describe(each.name, each.digest, each.signature, each.missing)
                for each in serving.models
            ]
            made = document(models, version=serving.digest, token=serving.access.required)
            self._text = to_text(made).encode()
        return self._text
