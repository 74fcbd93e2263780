"""A Bento that is served only to be measured: started, awaited, its CPU read, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import psutil

from bundle.errors import ErrorCode, MlctlError
from bundle.home import bento_environment
from bundle.tokens import token_of
from loadtest.runs import MeasuredServer, Protocols
from loadtest.signals import held_back
from loadtest.target import Address

_HOST = "127.0.0.1"
_START_SECONDS = 120.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.1
_LOG_TAIL = 600
# A server that is measured listens for nobody else, and in the clear.
_ALONE = ("MLCTL_TLS_CERT", "MLCTL_TLS_KEY", "MLCTL_TLS_CLIENT_CA")


@contextmanager
def serving(
    bento: str,
    ports: tuple[int, int],
    protocol: Protocols,
    log: Path,
    settings: Mapping[str, str] | None = None,
) -> Iterator[MeasuredServer]:
    """`bento` on its own HTTP and gRPC `ports`, ready to be asked, with `settings` on top of ours.

    UNAVAILABLE, with the end of its log, if it does not become ready.
    """
    http_port, grpc_port = ports
    environment = {
        **os.environ,
        **bento_environment(),
        **dict.fromkeys(_ALONE, ""),
        "MLCTL_GRPC_PORT": str(grpc_port),
        "MLCTL_GRPC_HOST": _HOST,
        **(settings or {}),
    }
    token = token_of(environment)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    metrics = Address(_HOST, http_port, tls=False, headers=headers)
    asked = Address(_HOST, grpc_port, tls=False, headers=headers)
    command = [sys.executable, "-m", "bentoml", "serve", bento, "--host", _HOST]
    begun = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    try:
        # Cut in two, it would leave a process that nobody knows.
        with log.open("wb") as output, held_back():
            process = subprocess.Popen(
                [*command, "--port", str(http_port)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the terminal is ours to pass on
            )
        _await_ready(process, metrics, log)
        yield MeasuredServer(
            asked if protocol is Protocols.GRPC else metrics,
            metrics,
            partial(cpu_seconds, process.pid),
            partial(memory_bytes, process.pid),
            ready_seconds=time.monotonic() - begun,
        )
    finally:
        if process is not None:
            with held_back():
                _stop(process)


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all that live below it."""
    with _looked_at():
        times = [process.cpu_times() for process in _tree(pid)]
    return float(sum(each.user + each.system for each in times))


def memory_bytes(pid: int) -> int:
    """The memory of a process and all that live below it; what they share counts once."""
    with _looked_at():
        found = [process.memory_full_info() for process in _tree(pid)]
    return int(sum(getattr(each, "pss", each.uss) for each in found))


def _tree(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


@contextmanager
def _looked_at() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess as error:
        raise MlctlError(
            ErrorCode.UNAVAILABLE, "a process of the server ended meanwhile"
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
        "Try `mlctl serve` with the same settings.",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything below it."""
    below = _below(process)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        below += _below(process)  # it may have started more of them meanwhile
        process.kill()
        process.wait()
    for each in psutil.wait_procs(below, timeout=1.0)[1]:
        each.kill()


def _below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
