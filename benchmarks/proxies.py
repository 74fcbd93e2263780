"""What Envoy adds to a response: latency with one client, CPU with 64.

The upstream is the C echo server, so that nearly all of the time is the proxy's. Both paths are
measured in turns, and the CPU is Envoy's alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

from benchmarks.loadgen import LoadTarget, build, run_closed
from benchmarks.result import BenchmarkResult
from benchmarks.servers import tree_cpu_seconds, wait_until
from loadtest.inputs import post
from rollout.domain.ports import DataPlaneUnavailable, MeteredDataPlane, TrafficSplit
from rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from rollout.drivers.local.ports import free_ports
from rollout.drivers.proxies import proxy_of

_SECONDS = 3.0
_TURNS = 5
_CLIENTS = 64
_RESPONSE_BYTES = 300


@contextmanager
def proxied_echo(folder: Path) -> Iterator[tuple[int, int, psutil.Process]]:
    """Yield the port of an echo server, that of Envoy in front of it, and Envoy's process."""
    echo_port, listen, admin = free_ports(3)
    directory = folder / "envoy"
    directory.mkdir()
    proxy = proxy_of(directory, Ports(listen, admin), DeploymentSettings())
    proxy.prepare(Slot.BLUE)
    echo: list[Path | str] = [build("echo", folder), str(echo_port), str(_RESPONSE_BYTES)]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(echo) as upstream,
        subprocess.Popen(proxy.command(), stdout=log, stderr=log) as envoy,
        proxy.data_plane() as data_plane,
    ):
        try:
            wait_until(lambda: _is_up(data_plane), "Envoy")
            data_plane.connect(Slot.BLUE, (Endpoint(echo_port, echo_port),))
            data_plane.apply(TrafficSplit({Slot.BLUE: 100, Slot.GREEN: 0}))
            wait_until(lambda: data_plane.read().healthy[Slot.BLUE], "a healthy upstream")
            yield echo_port, listen, psutil.Process(envoy.pid)
        finally:
            envoy.kill()
            upstream.kill()


def _is_up(data_plane: MeteredDataPlane) -> bool:
    try:
        return data_plane.weights() is not None
    except DataPlaneUnavailable:
        return False


def measure(folder: Path, result: BenchmarkResult) -> None:
    """Add the table of both paths."""
    loadgen = build("loadgen", folder)
    request = post("/v2/models/tiny/infer", b"{}", {"Host": "127.0.0.1"})
    p50: dict[str, list[float]] = {"direct": [], "Envoy": []}
    p99: dict[str, list[float]] = {"direct": [], "Envoy": []}
    per_cpu_second = []
    with proxied_echo(folder) as (echo_port, envoy_port, envoy):
        for _ in range(_TURNS):
            for path, port in (("direct", echo_port), ("Envoy", envoy_port)):
                load = run_closed(loadgen, LoadTarget("http", port, request), 1, _SECONDS)
                p50[path].append(load.p50_ms)
                p99[path].append(load.p99_ms)
            before = tree_cpu_seconds(envoy)
            load = run_closed(loadgen, LoadTarget("http", envoy_port, request), _CLIENTS, _SECONDS)
            per_cpu_second.append(load.succeeded / (tree_cpu_seconds(envoy) - before))
            if load.failed:
                raise SystemExit(f"{load.failed} requests through Envoy failed")
    table = result.table(
        f"Envoy in front of the C echo server, median of {_TURNS} turns of {_SECONDS:g} s",
        *("path", "p50 ms", "p99 ms", "added p50 ms", f"responses/CPU-s, {_CLIENTS} clients"),
    )
    direct = median(p50["direct"])
    table.add("direct", direct, median(p99["direct"]), "", "")
    envoy_p50 = median(p50["Envoy"])
    rate = median(per_cpu_second)
    table.add("Envoy", envoy_p50, median(p99["Envoy"]), envoy_p50 - direct, rate)
