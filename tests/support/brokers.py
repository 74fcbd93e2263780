"""A real NATS server on a free port, gone at the end; and brokers that stall."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollout.local.launcher import free_ports
from tests.support.wait import PATIENCE_SECONDS, wait_until

_EXECUTABLE = Path(sysconfig.get_path("scripts")) / "nats-server"


@dataclass(frozen=True, slots=True)
class NatsServer:
    """A running server."""

    address: str
    port: int
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL: it answers nobody from now on."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def nats_server(folder: Path, port: int | None = None, *options: str) -> Iterator[NatsServer]:
    """NATS with JetStream and what was kept in `folder`."""
    port = port or free_ports(1)[0]
    where = ("--addr", "127.0.0.1", "--port", str(port), "--store_dir", str(folder))
    command = [str(_EXECUTABLE), "--jetstream", *where, *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    server = NatsServer(f"127.0.0.1:{port}", port, process)

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            return connection.recv(4) == b"INFO"
        return False

    try:
        wait_until(answers, what="NATS answers")
        yield server
    finally:
        server.kill()


@contextmanager
def stalled(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """The broker takes nothing, and goes on after `seconds`."""
    os.kill(process.pid, signal.SIGSTOP)
    # Its threads stop one by one, and on a busy machine not at once.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    timer = threading.Timer(seconds, os.kill, (process.pid, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()
