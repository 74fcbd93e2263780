"""The admin listener of one worker: a port, or a Unix socket for each of several workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvicorn

from bundle.errors import ErrorCode, MlctlError
from bundle.sampling import write_sampling
from services.admin.app import Admin, admin_app
from services.hosts import Serving
from services.http.app import App
from services.lean.guard import GuardedProtocol
from services.secure.tls import Tls
from services.settings import Settings

_BACKLOG = 16


class AdminServer:
    """Serves `app` on `listener`, on the event loop that calls `start`."""

    def __init__(self, app: App, listener: socket.socket, tls: Tls | None = None) -> None:
        self._listener = listener
        is_path = listener.family == socket.AF_UNIX
        self._path = Path(listener.getsockname()) if is_path else None
        config = uvicorn.Config(
            app,
            http=GuardedProtocol,  # "auto" is the model's own protocol in this process
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ssl_context_factory=None if tls is None else lambda *_: tls.context(),
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept requests."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self) -> None:
        """Accept no more, and wait a second for the open ones."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Quiet(uvicorn.Server):
    """A second server in the process: signals are the first one's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def open_admin(host: Serving, worker: int) -> AdminServer | None:
    """The admin server of one worker; None if the settings ask for none.

    Raises what `open_listener` and the reading of the token file raise.
    """
    settings = host.settings
    listener = open_listener(settings, worker)
    if listener is None:
        return None
    control = settings.sample_control
    admin = Admin(host, None if control is None else partial(write_sampling, control))
    # A Unix socket ends on this machine, where there is nothing to encrypt.
    tls = None if listener.family == socket.AF_UNIX else settings.tls
    return AdminServer(admin_app(admin, settings.admin_access()), listener, tls)


def open_listener(settings: Settings, worker: int) -> socket.socket | None:
    """The socket that the settings ask for, listening; None if they ask for none.

    PORT_TAKEN, and INVALID_INPUT for a folder that cannot be used.
    """
    if settings.admin_dir is not None:
        return _open_path(settings.admin_dir / f"worker-{worker}.sock")
    if settings.admin_port is None:
        return None
    host, port = settings.admin_host, settings.admin_port
    try:
        return socket.create_server((host, port), backlog=_BACKLOG, family=_family(host))
    except OSError:
        raise MlctlError(
            ErrorCode.PORT_TAKEN,
            f"the admin listener cannot listen on {host}:{port}",
            "Set MLCTL_ADMIN_PORT to a free port.",
        ) from None


def _open_path(path: Path) -> socket.socket:
    """A Unix socket that only this user can connect to; one that a dead worker left is replaced."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the admin listener cannot use {path}: {error.strerror or error}",
            "Set MLCTL_ADMIN_DIR to a short path that this user can write to.",
        ) from None
    return listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
