"""A server of a Bento that runs for a measurement: started, measured and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import httpx
import psutil

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import bento_environment
from mlctl.core.ports import free_ports
from mlctl.core.tokens import token_of
from mlctl.loadtest.runs import MeasuredServer, Protocols
from mlctl.loadtest.target import Address

_HOST = "127.0.0.1"
_START_SECONDS = 120.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.02
_LOG_TAIL = 600
_DEFERRED = (signal.SIGINT, signal.SIGTERM)
# A measured server listens on the loopback address, without TLS.
_NO_TLS = ("MLCTL_TLS_CERT", "MLCTL_TLS_KEY", "MLCTL_TLS_CLIENT_CA")


@contextmanager
def serving(
    bento: str, protocol: Protocols, settings: Mapping[str, str] | None = None
) -> Iterator[MeasuredServer]:
    """Serve `bento` on free ports until the block ends; yield it when it is ready.

    `settings` override the environment. UNAVAILABLE, with the end of its log, if it does not
    become ready.
    """
    http_port, grpc_port = free_ports(2)
    environment = {
        **os.environ,
        **bento_environment(),
        **dict.fromkeys(_NO_TLS, ""),
        "MLCTL_GRPC_PORT": str(grpc_port),
        "MLCTL_GRPC_HOST": _HOST,
        **(settings or {}),
    }
    token = token_of(environment)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    metrics = Address(_HOST, http_port, tls=False, headers=headers)
    grpc = Address(_HOST, grpc_port, tls=False, headers=headers)
    command = [sys.executable, "-m", "bentoml", "serve", bento, "--host", _HOST]
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder:
        log = Path(folder) / "log"
        started = time.monotonic()
        process: subprocess.Popen[bytes] | None = None
        try:
            # An interrupt between the fork and the assignment would leave a process behind.
            with log.open("wb") as output, deferred_signals():
                process = subprocess.Popen(
                    [*command, "--port", str(http_port)],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # `_stop` ends it, not the terminal
                )
            _await_ready(process, metrics, log)
            yield MeasuredServer(
                grpc if protocol is Protocols.GRPC else metrics,
                metrics,
                partial(cpu_seconds, process.pid),
                partial(memory_bytes, process.pid),
                ready_seconds=time.monotonic() - started,
                log=log,
            )
        finally:
            if process is not None:
                with deferred_signals():
                    _stop(process)


def cpu_seconds(pid: int) -> float:
    """Return the user and system seconds of a process and its descendants."""
    with _existing():
        times = [process.cpu_times() for process in _tree(pid)]
    return float(sum(each.user + each.system for each in times))


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; shared pages count once."""
    with _existing():
        found = [process.memory_full_info() for process in _tree(pid)]
    return int(sum(getattr(each, "pss", each.uss) for each in found))


def _tree(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


@contextmanager
def _existing() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess as error:
        raise MlctlError(
            ErrorCode.UNAVAILABLE, "a process of the server ended during the measurement"
        ) from error


def _await_ready(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    with httpx.Client(base_url=address.url, timeout=5.0, trust_env=False) as client:
        while process.poll() is None and time.monotonic() < end:
            try:
                if client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(_POLL_SECONDS)
    tail = log.read_text(errors="replace")[-_LOG_TAIL:].strip()
    raise MlctlError(
        ErrorCode.UNAVAILABLE,
        f"the Bento did not become ready; its log ends with:\n{tail}",
        "Run `mlctl serve` with the same settings.",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server and its descendants."""
    children = _children(process)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        children += _children(process)  # it may have started more
        process.kill()
        process.wait()
    for each in psutil.wait_procs(children, timeout=1.0)[1]:
        each.kill()


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM that arrive within the block at its end.

    Python interrupts only the main thread, so in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {each: signal.signal(each, record) for each in _DEFERRED}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in dict.fromkeys(received):
            signal.raise_signal(number)
