"""What a scenario of faults acts on: one real server of two workers, its clients and commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from bundle.verify import VerifiedBundle
from tests.support.fault_clients import MODEL, Burst, Load, RudeClient
from tests.support.faulty_os import FaultyOs, make_faulty_os
from tests.support.mlctl import Mlctl
from tests.support.serving import Server, launch, running
from tests.support.transforms import TOKENIZER, make_text_bundle
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
WORKERS = 2
# The most rows that wait for one worker; a burst is measured by it.
QUEUE_ROWS = 64
# Texts that make the model take its time, never end, or ask for more memory than there is.
_SOURCE = TOKENIZER.replace(
    "def preprocess(inputs):\n",
    "def preprocess(inputs):\n"
    "    for text in inputs['text']:\n"
    "        __import__('time').sleep({b'slow': 0.3, b'stuck': 1e6}.get(text, 0))\n"
    "        bytearray((1 << 60) if text == b'huge' else 0)\n",
)


@dataclass(frozen=True, slots=True)
class Served:
    """The server, what it serves, and the operating system that it believes in."""

    server: Server
    bundle: VerifiedBundle
    system: FaultyOs | None

    def workers(self) -> set[int]:
        """The processes that serve: those that opened the gRPC port."""
        children = psutil.Process(self.server.process.pid).children()
        return {child.pid for child in children if listens(child, self.server.grpc_port)}

    def metric(self, line: str) -> float:
        """The sum of the metrics whose lines begin so."""
        text = httpx.get(f"{self.server.url}/metrics").text
        return sum(float(each.split()[-1]) for each in text.splitlines() if each.startswith(line))


def listens(process: psutil.Process, port: int) -> bool:
    try:
        found = process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """The server that scenarios share; its access log is on the disk that can be filled."""
    bundle = make_text_bundle(folder / "bundle", _SOURCE, name=MODEL)
    system = make_faulty_os(folder / "system")
    log = (system.disk if system else folder) / "access.log"
    variables = {
        "MLCTL_BUNDLE": str(bundle.root),
        "MLCTL_WORKERS": str(WORKERS),
        "MLCTL_HANG_S": "5",
        "MLCTL_MAX_QUEUE_ROWS": str(QUEUE_ROWS),
        "MLCTL_ACCESS_LOG": str(log),
        **(system.environment if system else {}),
    }
    launched = launch(
        "services.service:service",
        folder / "log",
        cwd=ROOT,
        bento_home=folder / "bentoml",
        environment=variables,
    )
    with running(launched) as ready:
        yield Served(ready, bundle, system)


@dataclass(slots=True)
class World:
    """One scenario's: what it did so far, and what its `folder` holds. `close` ends it."""

    served: Served
    folder: Path
    workers: set[int] = field(init=False)
    load: Load | None = None
    known: set[str] = field(default_factory=set)
    victim: int = 0
    replies: list[httpx.Response] = field(default_factory=list)
    clients: list[RudeClient] = field(default_factory=list)
    burst: Burst | None = None
    done: subprocess.CompletedProcess[str] | None = None
    altered: dict[Path, bytes] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wait_until(lambda: len(self.served.workers()) == WORKERS, what="all workers serve")
        self.workers = self.served.workers()

    @property
    def server(self) -> Server:
        return self.served.server

    @property
    def system(self) -> FaultyOs:
        system = self.served.system
        assert system is not None, "scenarios that need it are left out where there is no compiler"
        return system

    def command(self, arguments: list[str]) -> None:
        """Run mlctl under the same operating system, with its own state."""
        mlctl = Mlctl(self.folder)
        system = self.served.system
        self.done = subprocess.run(
            mlctl.command(*arguments),
            env={
                **mlctl.environment,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                **(system.environment if system else {}),
                **self.environment,
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def close(self) -> None:
        """Put everything back, whatever failed."""
        if self.load is not None:
            self.load.stop()
        for client in self.clients:
            client.leave()
        for path, content in self.altered.items():
            path.write_bytes(content)
        if self.served.system is not None:
            self.served.system.step_clock(0)
            self.served.system.leave_room(None)
