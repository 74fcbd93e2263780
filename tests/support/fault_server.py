"""A real server of two workers for tests that make its disk, clock, bundle or workers fail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from mlctl.bundle.verify import VerifiedBundle
from tests.support.command_line import Mlctl
from tests.support.fault_clients import MODEL, answered_by, send_http
from tests.support.faulty_os import FaultyOs, make_faulty_os
from tests.support.serving import Server, launch, running
from tests.support.transforms import TOKENIZER, make_text_bundle
from tests.support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
WORKERS = 2
# The limit of one worker's queue; the size of a burst is a multiple of it.
QUEUE_ROWS = 64
# Texts that make the model slow, hang, or ask for more memory than there is.
_SOURCE = TOKENIZER.replace(
    "def preprocess(inputs):\n",
    "def preprocess(inputs):\n"
    "    for text in inputs['text']:\n"
    "        __import__('time').sleep({b'slow': 0.15, b'stuck': 1e6}.get(text, 0))\n"
    "        bytearray((1 << 60) if text == b'huge' else 0)\n",
)


@dataclass(frozen=True, slots=True)
class FaultServer:
    """The server, its bundle, and its faulty operating system (None without a C compiler)."""

    server: Server
    bundle: VerifiedBundle
    system: FaultyOs | None

    def children(self) -> set[int]:
        """Return the processes that the server started and that are not gone."""
        return {child.pid for child in psutil.Process(self.server.process.pid).children()}

    def workers(self) -> set[int]:
        """Return the processes that listen on the gRPC port."""
        children = psutil.Process(self.server.process.pid).children()
        return {child.pid for child in children if _listens(child, self.server.grpc_port)}

    def metric(self, prefix: str) -> float:
        """Return the sum of the metrics whose lines begin with `prefix`."""
        lines = httpx.get(f"{self.server.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(prefix))

    def send(self, text: str) -> httpx.Response:
        """Send a request over a connection of its own."""
        with httpx.Client(timeout=PATIENCE_SECONDS) as client:
            return send_http(client, self.server, text)

    def worker_names(self) -> set[str]:
        """Return the name of each worker, as the ids of its requests begin."""
        names: set[str] = set()
        for _ in range(10_000):
            names.add(answered_by(self.send("one")))
            if len(names) == WORKERS:
                return names
        raise AssertionError(f"only {names} answer")

    def mlctl(
        self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in `folder`, on the same operating system and with its own state."""
        mlctl = Mlctl(folder)
        variables = {
            **mlctl.environment,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            **(self.system.environment if self.system else {}),
            **(environment or {}),
        }
        return subprocess.run(
            mlctl.command(*arguments),
            env=variables,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        found = process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


@contextmanager
def serve(folder: Path) -> Iterator[FaultServer]:
    """Start the server; its access log is on the disk that a test can fill."""
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
        "mlctl.services.service:service",
        folder / "log",
        cwd=ROOT,
        bento_home=folder / "bentoml",
        environment=variables,
    )
    with running(launched) as ready:
        yield FaultServer(ready, bundle, system)
