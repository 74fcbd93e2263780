"""What the worker processes of one server share: ports, metrics and exit code.

Both ports are shared by SO_REUSEPORT; a worker listens only when it is ready. The workers'
metrics are in one folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from mlctl.core.child_process import describe_exit, is_crash
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.services.online.grpc_port import reserve_port
from mlctl.services.online.server.patches import (
    replace_workers_in_containers,
    use_monotonic_clock,
    watch_workers,
)
from mlctl.services.online.settings import ServerSettings

_COUNTS = "MLCTL_COUNTS_DIR"
_SUPERVISOR = "MLCTL_SUPERVISOR_PID"
# In that folder.
_FAILURE = "failure"
_LOADING = "loading-"  # and the worker's id
_SERVED = "served"
_CRASHED = "crashed"
_PROMETHEUS = "PROMETHEUS_MULTIPROC_DIR"
# Besides its clients' connections a process has files, libraries' devices and pipes open.
_OTHER_FILES = 256
_reserved: list[socket.socket] = []


def prepare_server(settings: ServerSettings) -> None:
    """Prepare the supervisor, before it starts a worker; PORT_TAKEN if the gRPC port is in use.

    The server gets a folder of its own for its metrics: the next server that starts from the same
    store empties the folder of BentoML's store.
    """
    use_monotonic_clock()
    watch_workers(_note_crash)
    folder = tempfile.mkdtemp(prefix="mlctl-counts-")
    atexit.register(_end_server, Path(folder))
    os.environ[_COUNTS] = folder
    os.environ[_SUPERVISOR] = str(os.getpid())
    if settings.workers > 1:
        replace_workers_in_containers()
        if settings.grpc_port is not None:
            _reserved.append(reserve_port(settings.grpc_host, settings.grpc_port))


def supervisor() -> int:
    """Return the process that started this worker, which may have ended."""
    return int(os.environ.get(_SUPERVISOR) or os.getppid())


def note_failure(exit_code: int) -> None:
    """Set the exit code of the server, in a worker that cannot serve and ends it."""
    if folder := os.environ.get(_COUNTS):
        Path(folder, _FAILURE).write_text(str(exit_code))


@contextlib.contextmanager
def loading(models: str) -> Iterator[None]:
    """Note for the supervisor that this worker loads `models`, in case that ends the process.

    UNSUPPORTED_MODEL if it has ended a worker before, and no worker of this server has ever served:
    the supervisor would start one after the other.
    """
    if (folder := os.environ.get(_COUNTS)) is None:
        yield
        return
    note, crashed, served = (
        Path(folder, name) for name in (f"{_LOADING}{os.getpid()}", _CRASHED, _SERVED)
    )
    if crashed.exists() and not served.exists():
        raise _load_error(crashed.read_text())
    note.write_text(models)
    try:
        yield
        served.touch()
    finally:
        note.unlink(missing_ok=True)


def _note_crash(worker: int, exit_code: int) -> None:
    """Keep what a worker died of while it loaded its models, and log it if others serve."""
    folder = Path(os.environ[_COUNTS])
    note = folder / f"{_LOADING}{worker}"
    if not is_crash(exit_code) or not note.exists():
        return
    sentence = f"the process that loaded {note.read_text()} died {describe_exit(exit_code)}"
    note.unlink()
    (folder / _CRASHED).write_text(sentence)
    if (folder / _SERVED).exists():
        print(explain(_load_error(sentence)), file=sys.stderr, flush=True)


def _load_error(sentence: str) -> MlctlError:
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL,
        sentence,
        "Run `mlctl optimize` on a machine with this processor, or give the server more memory.",
    )


def _end_server(folder: Path) -> None:
    """Exit with the code of a worker that could not serve, instead of the supervisor's 0."""
    failure = folder / _FAILURE
    exit_code = int(failure.read_text()) if failure.exists() else 0
    shutil.rmtree(folder, ignore_errors=True)
    if exit_code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)  # the only way to another code once the interpreter ends


def join_server(settings: ServerSettings) -> None:
    """Prepare a worker: share the metrics of all workers, and allow enough open connections."""
    if folder := os.environ.get(_COUNTS):
        os.environ[_PROMETHEUS] = folder
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * settings.max_connections + _OTHER_FILES  # HTTP's, and as many of gRPC
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen_alone(descriptor: int) -> None:
    """Put a listener of this worker's own in the place of the one that all workers inherit.

    Of the processes that wait at one socket the same one would get nearly every connection; the
    kernel spreads them evenly over sockets that share a port. This one takes connections
    when the server starts to listen, and the inherited one never again: it only keeps the
    port from others. Linux alone does it so; elsewhere all go on with the inherited one.
    """
    if sys.platform != "linux":
        return
    with socket.socket(fileno=os.dup(descriptor)) as inherited:
        inherited.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with contextlib.suppress(OSError):  # another worker has done so
            inherited.shutdown(socket.SHUT_RD)
        with socket.socket(inherited.family, inherited.type) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            own.bind(inherited.getsockname())
            os.dup2(own.fileno(), descriptor)


def forget_dead_workers() -> None:
    """Remove the gauges of workers that have ended from the sums; their counters stay."""
    folder = os.environ.get(_PROMETHEUS)
    if folder is None:
        return
    for path in Path(folder).glob("gauge_live*.db"):
        pid = int(path.stem.rpartition("_")[2])
        if pid != os.getpid() and not _is_sibling(pid):
            path.unlink(missing_ok=True)


def _is_sibling(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.ppid() == os.getppid() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def explain(error: BaseException) -> str:
    """Return why the server does not start, for its log."""
    if isinstance(error, MlctlError):
        return f"mlctl does not serve this bundle ({error.code}): {error.message}. {error.hint}"
    return f"mlctl could not start the model: {error!r}"


def is_worker() -> bool:
    """Return whether a supervisor started this process, and starts another when it ends."""
    import bentoml

    return bentoml.server_context.worker_index is not None


def stop_supervisor(error: BaseException) -> None:
    """Stop the server that started this worker, with `error`'s exit code; elsewhere do nothing."""
    if is_worker():
        code = error.code if isinstance(error, MlctlError) else ErrorCode.INTERNAL
        note_failure(ERROR_TABLE[code].exit_code)
        if os.getppid() == supervisor():  # another process may have its id by now
            os.kill(supervisor(), signal.SIGTERM)
