"""What an operator asks of one worker, on a listener of its own: its state, and a few verbs.

Callers of the model never reach it. All answers are JSON, and errors are those of the
model's API. A page in the operator's own browser could reach a port of this machine as
well; so where no token is asked for, requests that a page causes are refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bundle.errors import ErrorCode, MlctlError
from bundle.sampling import Sampling
from services.batching.batcher import deadline_exceeded
from services.host import ModelHost
from services.hosts import Serving
from services.http.app import App, Message, Receive, Send, send_error, too_large
from services.http.fields import fields_of
from services.http.responses import MethodError, error_response, json_response
from services.secure.gate import TokenGate
from services.secure.public import failed
from services.secure.tokens import Access
from services.v2.jsonbody import parse_object
from services.v2.wire import invalid

MAX_BODY_BYTES = 64 << 10
LEVELS = ("debug", "info", "warning", "error", "critical")
_READ_SECONDS = 10.0
# The second may hold a password in its URL.
_SECRETS = {"token", "otlp_endpoint"}
Sample = Callable[[Sampling], None]
logger = logging.getLogger("mlctl.admin")


class Admin:
    """The verbs for one worker. `sample` makes it record by a document; None if it cannot."""

    def __init__(
        self,
        host: Serving,
        sample: Sample | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._sample = sample
        self._clock = clock
        self._started = clock()

    async def status(self, _request: Request) -> Response:
        """What is served, in which state, and by which numbers the batcher decides."""
        host = self._host
        models = [_model(each) for each in host.hosts]
        told = {"model": host.name, "digest": host.digest, "state": host.state, "live": host.live}
        document = {
            **(models[0] if len(models) == 1 else {**told, "models": models}),
            "uptime_seconds": round(self._clock() - self._started, 3),
            "log_level": logging.getLevelName(logging.getLogger("mlctl").level).lower(),
            "settings": host.settings.model_dump(mode="json", exclude=_SECRETS),
        }
        return _answer(document)

    async def drain(self, _request: Request) -> Response:
        """Say "not ready" to whoever sends traffic here, and go on answering what comes."""
        return self._set_draining(draining=True)

    async def undrain(self, _request: Request) -> Response:
        """Take back `drain`."""
        return self._set_draining(draining=False)

    async def log_level(self, request: Request) -> Response:
        """Set how much the server logs: `{"level": "debug"}`."""
        level = parse_object(await _body(request)).get("level")
        if level not in LEVELS:
            raise invalid(f"field 'level' must be one of {', '.join(LEVELS)}")
        logging.getLogger("mlctl").setLevel(level.upper())
        logger.warning("the log level is %s now", level)
        return _answer({"level": level})

    async def sampling(self, request: Request) -> Response:
        """Record requests by the document in the body; its fields are `Sampling`'s."""
        text = (await _body(request)).decode(errors="replace")
        if self._sample is None:
            raise MlctlError(
                ErrorCode.NOT_PERMITTED,
                "this server has no file by which it is told to record",
                "Start it with MLCTL_SAMPLE_CONTROL.",
            )
        sampling = Sampling.from_json(text)
        self._sample(sampling)
        logger.warning("sampling is set to a share of %g", sampling.share)
        return _answer(asdict(sampling))

    def _set_draining(self, *, draining: bool) -> Response:
        if self._host.draining != draining:
            self._host.drain(on=draining)
            logger.warning("the model is %s now", self._host.state)
        return _answer({"state": self._host.state})


class NoPages:
    """ASGI middleware: NOT_PERMITTED for what a web page makes a browser send.

    A page of another origin names it; one whose name was pointed at this machine has that
    name in Host, where operators have an address or localhost.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = fields_of(scope.get("headers", ()))
        if b"origin" in headers or not _is_local(headers.get(b"host", b"")):
            await send_error(
                send,
                MlctlError(
                    ErrorCode.NOT_PERMITTED,
                    "the admin listener takes no requests from web pages",
                    "Use the address or localhost in the URL, or start with an admin token.",
                ),
            )
            return
        await self._app(scope, receive, send)


def admin_app(admin: Admin, access: Access) -> App:
    """The application of `admin`, behind its token if it has one."""
    verbs = {
        "status": ("GET", admin.status),
        "drain": ("POST", admin.drain),
        "undrain": ("POST", admin.undrain),
        "log-level": ("POST", admin.log_level),
        "sampling": ("PUT", admin.sampling),
    }
    routes = [
        Route(f"/admin/{name}", answer, methods=[method])
        for name, (method, answer) in verbs.items()
    ]
    handlers: dict[Any, Any] = {
        MlctlError: _refuse,
        HTTPException: _refuse_route,
        Exception: _refuse_unexpected,
    }
    app: Any = Starlette(routes=routes, exception_handlers=handlers)
    if not access.required:
        return NoPages(app)
    return TokenGate(app, access, lambda error, _scope: error_response(error), frozenset())


def _model(host: ModelHost) -> dict[str, Any]:
    return {
        "model": host.name,
        "digest": host.digest,
        "state": host.state,
        "live": host.live,
        "queue_rows": host.waiting_rows,
        "batch_seconds": {str(rows): seconds for rows, seconds in host.costs.items()},
        "limits": None if host.limits is None else asdict(host.limits),
    }


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise too_large(MAX_BODY_BYTES)
    except TimeoutError:
        raise deadline_exceeded() from None
    return bytes(body)


def _answer(document: Mapping[str, Any]) -> Response:
    return _as_starlette(json_response(200, document))


async def _refuse(_request: Request, error: MlctlError) -> Response:
    return _as_starlette(error_response(error))


async def _refuse_route(_request: Request, error: HTTPException) -> Response:
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {})["Allow"].split(", ")
        return _as_starlette(error_response(MethodError(allowed)))
    missing = MlctlError(ErrorCode.NOT_FOUND, "the admin listener has no such path")
    return _as_starlette(error_response(missing))


async def _refuse_unexpected(_request: Request, _error: Exception) -> Response:
    return _as_starlette(error_response(failed()))  # starlette raises it again, for the log


def _as_starlette(response: Any) -> Response:
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Response(response.body, response.status, headers)


def _is_local(host: bytes) -> bool:
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        if name == "localhost":
            return True
        ip_address(name)
    except ValueError:
        return False
    return True
