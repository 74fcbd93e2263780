"""A real proxy with real replicas and real clients, for the data plane contract."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import httpx

from bundle.ports import free_ports
from rollout.domain.ports import DataPlaneUnavailable, MeteredDataPlane, Proxy, TrafficSplit
from rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from rollout.drivers.headers import TESTER_HEADER, TESTER_VALUE
from rollout.drivers.proxies import proxy_of
from tests.support.wait import wait_until

_FAKE_BENTO = Path(__file__).with_name("fake_bento.py")
# Shared, because each client would read the system's certificates for itself.
NO_TLS = ssl.create_default_context()
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


class Traffickers:
    """Clients that ask one after the other: over HTTP each its own kept connection, over gRPC one.

    `answers` counts who answered (the start of the digest), or what went wrong.
    """

    def __init__(self, port: int, clients: int = 4, *, tester: bool = False) -> None:
        self._port = port
        self._clients = clients
        self._headers = {TESTER_HEADER: TESTER_VALUE} if tester else {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

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

    async def _run(self) -> None:
        address = f"127.0.0.1:{self._port}"
        async with grpc.aio.insecure_channel(address) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
            http = (self._ask_http(f"http://{address}{_INFER}") for _ in range(self._clients))
            await asyncio.gather(*http, self._ask_grpc(call))

    async def _ask_http(self, url: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30.0, verify=NO_TLS) as client:
            while not self._stop.is_set():
                try:
                    answer = await client.post(url, content=b"{}", headers=self._headers)
                    good = answer.status_code == httpx.codes.OK
                    told = answer.json()["model_version"][:2] if good else str(answer.status_code)
                except httpx.HTTPError as error:
                    told = repr(error)
                self.answers[told] += 1

    async def _ask_grpc(self, call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        metadata = tuple(self._headers.items())
        while not self._stop.is_set():
            one = call(b"", timeout=30.0, metadata=metadata)
            try:
                await one
                trailers = dict(await one.trailing_metadata())
                told = str(trailers["digest"])[:2]
            except grpc.aio.AioRpcError as error:
                told = f"gRPC {error.code()} {error.details()}"
            self.answers[told] += 1
