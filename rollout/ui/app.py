"""The server of the page: what the journal records, redrawn every second, and three commands.

Everything shown comes from the journal, so finished rollouts and deployments that are down have
their page too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from mlctl.core.charts.templates import FOLDER as CHARTS
from mlctl.core.charts.templates import chart_environment
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client import deployments
from mlctl.rollout.client.rendering import local_time
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.ui.access import HEADERS, HOSTS, PageAccess
from mlctl.rollout.ui.feed import REDRAW_SECONDS, Feed
from mlctl.rollout.ui.view import COMMANDS, allowed

_FOLDER = Path(__file__).parent
_ASSETS = {
    "style.css": CHARTS / "style.css",
    "page.css": _FOLDER / "page.css",
    "page.js": _FOLDER / "page.js",
    "session.js": _FOLDER / "session.js",
}
_REASON = "from the page of mlctl ui"


def ui_app(
    access: PageAccess,
    stopping: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> Starlette:
    """Return the ASGI application; `stopping` ends the streams of open pages."""
    site = _Site(access, stopping, clock or SystemClock())
    return Starlette(
        routes=[
            Route("/", site.index),
            Route("/session", site.session, methods=["POST"]),
            Route("/assets/{file}", site.asset),
            Route("/deployments/{name}", site.deployment),
            Route("/deployments/{name}/live", site.live),
            Route("/deployments/{name}/{command}", site.command, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))],
        exception_handlers={MlctlError: _error},
    )


class _Site:
    """The handlers; those that read the journal run in threads."""

    def __init__(self, access: PageAccess, stopping: Callable[[], bool], clock: Clock) -> None:
        self._access = access
        self._stopping = stopping
        self._clock = clock

    def index(self, request: Request) -> Response:
        if not self._access.granted(request):
            return _html("session.html.j2", status=401)
        return _html("index.html.j2", names=_names())

    def deployment(self, request: Request) -> Response:
        if not self._access.granted(request):
            return _html("session.html.j2", status=401)
        feed = self._feed(request)
        csrf = self._access.csrf
        return _html("page.html.j2", page=feed.read(), csrf=csrf, chosen=feed.chosen)

    def session(self, request: Request) -> Response:
        return self._access.open_session(request)

    def asset(self, request: Request) -> Response:
        path = _ASSETS.get(request.path_params["file"])
        if path is None:
            raise MlctlError(ErrorCode.NOT_FOUND, "there is no such file")
        return FileResponse(path, headers=HEADERS)

    async def live(self, request: Request) -> Response:
        self._access.require(request)
        feed = self._feed(request)
        await run_in_threadpool(feed.read)  # an error has its own response
        updates = _updates(feed, self._stopping)
        return StreamingResponse(updates, media_type="text/event-stream", headers=HEADERS)

    def command(self, request: Request) -> Response:
        self._access.require_command(request)
        name, command = request.path_params["name"], request.path_params["command"]
        _send(name, command, _rollout_id(request))
        return JSONResponse({"name": name, "command": command}, headers=HEADERS)

    def _feed(self, request: Request) -> Feed:
        return Feed(request.path_params["name"], _rollout_id(request), self._clock)


async def _updates(feed: Feed, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the changing part of the page as server-sent events, whenever it changed."""
    before = ""
    while not stopping():
        page = await run_in_threadpool(feed.read)
        text = _render("live.html.j2", page=page)
        if text != before:
            before = text
            yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
        await asyncio.sleep(REDRAW_SECONDS)


def _send(name: str, command: str, rollout: int | None) -> None:
    """Send the command if the rollout that the page shows can take it; NOT_FOUND otherwise."""
    with Journal(paths.journal()) as journal:
        deployment = journal.deployment(name)
        shown = next((each for each in journal.rollouts(name) if each.id == rollout), None)
    if shown is None or command not in allowed(deployment, shown):
        raise MlctlError(ErrorCode.NOT_FOUND, f"rollout {rollout} of {name!r} takes no {command}")
    if COMMANDS[command].final:
        deployments.rollback(name, _REASON)
    else:
        deployments.send_command(name, COMMANDS[command], _REASON)


def _names() -> list[str]:
    """Return every deployment that is up or had a rollout."""
    with Journal(paths.journal()) as journal:
        up = {each.name for each in journal.deployments()}
        return sorted(up | {each.deployment for each in journal.rollouts()})


def _rollout_id(request: Request) -> int | None:
    text = request.query_params.get("rollout")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise MlctlError(ErrorCode.INVALID_INPUT, "rollout is not a number")
    return int(text)


def _render(template: str, **values: object) -> str:
    found = chart_environment(_FOLDER).get_template(template)
    text: str = found.render(local_time=local_time, **values)
    return text


def _html(template: str, status: int = 200, **values: object) -> Response:
    return HTMLResponse(_render(template, **values), status, headers=HEADERS)


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MlctlError)
    if request.method == "POST":
        return JSONResponse({"error": error.as_dict()}, error.spec.http, headers=HEADERS)
    return _html("error.html.j2", error.spec.http, error=error)
