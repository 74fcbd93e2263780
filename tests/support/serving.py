"""A real `bentoml serve` process for tests: free ports, its log, and an orderly end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from mlctl.core.ports import free_ports
from tests.support.wait import PATIENCE_SECONDS, wait_until


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its ports, process and log file."""

    port: int
    grpc_port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def launch(
    target: str,
    log: Path,
    *,
    cwd: Path,
    bento_home: Path,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start `bentoml serve TARGET` in `cwd`; it is not ready yet."""
    port, grpc_port = free_ports(2)
    variables = {
        **os.environ,
        "BENTOML_HOME": str(bento_home),
        "BENTOML_DO_NOT_TRACK": "True",
        "MLCTL_GRPC_PORT": str(grpc_port),
        **(environment or {}),
    }
    command = [sys.executable, "-m", "bentoml", "serve", target]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=variables, stdout=output, stderr=subprocess.STDOUT
        )
    return Server(port, grpc_port, process, log)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Wait until `server` is ready, and stop it at the end."""
    try:
        wait_until(
            lambda: server.process.poll() is not None or server.is_ready(), what="server is ready"
        )
        assert server.process.poll() is None, server.log.read_text()
        yield server
    finally:
        stop(server)


def stop(server: Server) -> None:
    """SIGTERM, and SIGKILL if that was not enough."""
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
        raise
