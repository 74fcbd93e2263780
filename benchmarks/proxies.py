"""What Envoy adds to a response: latency with one client, CPU with 64.

The upstream is the C echo server, so that nearly all of the time is the proxy's. Beside the Envoy
of `mlctl up` runs one that only forwards. All are measured in turns, and the CPU is Envoy's alone.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

from benchmarks.loadgen import LoadTarget, build, run_closed
from benchmarks.result import BenchmarkResult
from benchmarks.servers import tree_cpu_seconds, wait_until
from mlctl.core.ports import free_ports
from mlctl.loadtest.inputs import post
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable, MeteredDataPlane, TrafficSplit
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from mlctl.rollout.drivers.envoy.names import Document
from mlctl.rollout.drivers.envoy.proxy import envoy_command
from mlctl.rollout.drivers.proxies import proxy_of

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


@contextmanager
def bare_envoy(folder: Path, upstream_port: int) -> Iterator[tuple[int, psutil.Process]]:
    """Yield the port and the process of an Envoy that only forwards: the least it can cost."""
    listen, admin = free_ports(2)
    bootstrap = folder / "bare.json"
    bootstrap.write_text(json.dumps(_bare_bootstrap(listen, admin, upstream_port)))
    with (folder / "bare.log").open("wb") as log:
        envoy = subprocess.Popen(envoy_command(bootstrap), stdout=log, stderr=log)
        try:
            wait_until(lambda: _accepts(listen), "the bare Envoy")
            yield listen, psutil.Process(envoy.pid)
        finally:
            envoy.kill()
            envoy.wait()


def _bare_bootstrap(listen: int, admin: int, upstream_port: int) -> Document:
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network"
        ".http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "generate_request_id": False,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "echo"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            }
        ],
    }
    connection_manager = "envoy.filters.network.http_connection_manager"
    filters = [{"name": connection_manager, "typed_config": manager}]
    endpoint = {"endpoint": {"address": _address(upstream_port)}}
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [
                {
                    "name": "bare",
                    "address": _address(listen),
                    "filter_chains": [{"filters": filters}],
                }
            ],
            "clusters": [
                {
                    "name": "echo",
                    "connect_timeout": "1s",
                    "load_assignment": {
                        "cluster_name": "echo",
                        "endpoints": [{"lb_endpoints": [endpoint]}],
                    },
                }
            ],
        },
    }


def _address(port: int) -> Document:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def measure(folder: Path, result: BenchmarkResult) -> None:
    """Add the table of the three paths, measured in turns."""
    loadgen = build("loadgen", folder)
    request = post("/predict", b"{}", {"Host": "127.0.0.1"})
    with (
        proxied_echo(folder) as (echo_port, envoy_port, envoy),
        bare_envoy(folder, echo_port) as (bare_port, bare),
    ):
        paths = {
            "direct": (echo_port, None),
            "bare Envoy": (bare_port, bare),
            "Envoy of `mlctl up`": (envoy_port, envoy),
        }
        p50: dict[str, list[float]] = {path: [] for path in paths}
        p99: dict[str, list[float]] = {path: [] for path in paths}
        microseconds: dict[str, list[float]] = {path: [] for path in paths}
        for _ in range(_TURNS):
            for path, (port, process) in paths.items():
                load = run_closed(loadgen, LoadTarget("http", port, request), 1, _SECONDS)
                p50[path].append(load.p50_ms)
                p99[path].append(load.p99_ms)
                if process is None:
                    continue
                before = tree_cpu_seconds(process)
                load = run_closed(loadgen, LoadTarget("http", port, request), _CLIENTS, _SECONDS)
                used = tree_cpu_seconds(process) - before
                microseconds[path].append(1e6 * used / load.succeeded)
                if load.failed:
                    raise SystemExit(f"{load.failed} requests through {path} failed")
    table = result.table(
        f"Envoy in front of the C echo server, median of {_TURNS} turns of {_SECONDS:g} s",
        *("path", "p50 ms", "p99 ms", "added p50 ms", f"CPU us per response, {_CLIENTS} clients"),
    )
    direct = median(p50["direct"])
    for path, (_, process) in paths.items():
        own = median(p50[path])
        cost = "" if process is None else median(microseconds[path])
        table.add(path, own, median(p99[path]), own - direct if process else "", cost)
