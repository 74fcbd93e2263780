"""A real proxy with real replicas and real clients, for the data plane contract."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import httpx

from mlctl.core.ports import free_ports
from mlctl.rollout.domain.interfaces import (
    DataPlaneUnavailable,
    MeteredDataPlane,
    Proxy,
    TrafficSplit,
)
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from mlctl.rollout.drivers.envoy.names import PROTOCOLS
from mlctl.rollout.drivers.headers import TESTER_HEADER, TESTER_VALUE
from mlctl.rollout.drivers.proxies import proxy_of
from tests.support.wait import wait_until

_FAKE_BENTO = Path(__file__).with_name("fake_bento.py")
_INFER = "/v2/models/tiny/infer"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
TAGS = {Slot.BLUE: "tiny:aa", Slot.GREEN: "tiny:bb"}


@dataclass
class Replica:
    """One fake Bento in a process of its own."""

    endpoint: Endpoint
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, tag: str, directory: Path) -> Replica:
        http, grpc_port = free_ports(2)
        log = directory / f"{http}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(_FAKE_BENTO), tag, "--port", str(http)],
                env={**os.environ, "MLCTL_GRPC_PORT": str(grpc_port)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return cls(Endpoint(http, grpc_port), process, log)

    def ready(self) -> bool:
        url = f"http://127.0.0.1:{self.endpoint.http}/readyz"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(url, trust_env=False).status_code == httpx.codes.OK
        return False

    def end(self, number: int = signal.SIGKILL) -> None:
        """Signal it and wait until it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=30)


@dataclass
class Stage:
    """Envoy in front of replicas of both slots."""

    directory: Path
    ports: Ports
    proxy: Proxy
    data_plane: MeteredDataPlane
    replicas: dict[Slot, list[Replica]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start_proxy(self) -> None:
        self.proxy.prepare(Slot.BLUE)
        with (self.directory / "proxy.log").open("ab") as log:
            self.process = subprocess.Popen(self.proxy.command(), stdout=log, stderr=log)
        wait_until(lambda: self.weights() is not None, what="the proxy answers")

    def stop_proxy(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=30)

    def weights(self) -> dict[Slot, int] | None:
        with contextlib.suppress(DataPlaneUnavailable):
            return self.data_plane.weights()
        return None

    def staff(self, slot: Slot, n: int = 1, options: str = "") -> list[Replica]:
        """Have exactly `n` living replicas of `slot` behind the proxy, found healthy."""
        kept = [one for one in self.replicas.get(slot, []) if one.process.poll() is None]
        for gone in kept[n:]:
            gone.end()
        tag = TAGS[slot] + options
        kept = kept[:n] + [Replica.start(tag, self.directory) for _ in range(n - len(kept))]
        self.replicas[slot] = kept
        wait_until(lambda: all(one.ready() for one in kept), what="the replicas are ready")
        self.data_plane.connect(slot, tuple(one.endpoint for one in kept))
        wait_until(lambda: self.data_plane.read().healthy[slot], what="the proxy finds it healthy")
        return kept

    def share(self, blue: int) -> None:
        self.data_plane.apply(TrafficSplit({Slot.BLUE: blue, Slot.GREEN: 100 - blue}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.listen}{_INFER}"

    def end(self) -> None:
        self.stop_proxy()
        for replica in (one for group in self.replicas.values() for one in group):
            replica.end()


@contextlib.contextmanager
def stage(directory: Path, tls: tuple[str, ...] = ()) -> Iterator[Stage]:
    """A running proxy without a replica yet; everything is ended afterwards."""
    listen, admin = free_ports(2)
    ports = Ports(listen, admin)
    proxy = proxy_of(directory, ports, DeploymentSettings(tls=tls))
    with proxy.data_plane() as data_plane:
        made = Stage(directory, ports, proxy, data_plane)
        try:
            made.start_proxy()
            yield made
        finally:
            made.end()


def broken_connections(ports: Ports, slot: Slot) -> int:
    """Return how many connections with requests in flight the slot's processes have broken.

    A process that is killed costs at most one request of each client on each of them.
    """
    url = f"http://127.0.0.1:{ports.admin}/stats"
    pattern = rf"^cluster\.{slot}-http[12]\.upstream_cx_destroy_remote_with_active_rq$"
    lines = httpx.get(url, params={"filter": pattern}, trust_env=False).text.splitlines()
    assert len(lines) == len(PROTOCOLS), lines
    return sum(int(line.rpartition(" ")[2]) for line in lines)


class TrafficClients:
    """Clients that send one request after the other: each its own HTTP connection, and one of gRPC.

    `answers` counts which revision answered (the start of its digest), or what went wrong.
    """

    def __init__(self, port: int, clients: int = 4, *, tester: bool = False) -> None:
        self._port = port
        self._headers = {TESTER_HEADER: TESTER_VALUE} if tester else {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        loops = [self._send_http] * clients + [self._send_grpc]
        self.count = len(loops)
        self._threads = [threading.Thread(target=each) for each in loops]
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def sent(self) -> int:
        return sum(self.answers.values())

    @property
    def failed(self) -> int:
        return self.sent - self.answers["aa"] - self.answers["bb"]

    def more(self, n: int) -> None:
        """Wait until `n` more answers came."""
        wanted = self.sent + n
        wait_until(lambda: self.sent >= wanted, what=f"{n} more answers")

    def _count(self, answer: str) -> None:
        with self._lock:
            self.answers[answer] += 1

    def _send_http(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30.0)
        with contextlib.closing(connection):
            while not self._stop.is_set():
                try:
                    connection.request("POST", _INFER, b"{}", self._headers)
                    response = connection.getresponse()
                    content = response.read()
                except (OSError, HTTPException) as error:
                    connection.close()  # the next request opens it again
                    self._count(repr(error))
                    continue
                good = response.status == httpx.codes.OK
                version = json.loads(content)["model_version"][:2] if good else ""
                self._count(version or str(response.status))

    def _send_grpc(self) -> None:
        metadata = tuple(self._headers.items())
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:  # type: ignore[no-untyped-call]
            method = channel.unary_unary(_METHOD)
            while not self._stop.is_set():
                try:
                    _, call = method.with_call(b"", timeout=30.0, metadata=metadata)
                    self._count(str(dict(call.trailing_metadata())["digest"])[:2])
                except grpc.RpcError as error:
                    self._count(f"gRPC {error}")
