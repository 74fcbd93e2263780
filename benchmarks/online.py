"""Throughput, latency and CPU cost of served responses, beside other servers and the limits.

One row in each request, and every request differs (`benchmarks.protocols`). The server with all
its processes has one core, the client another; the main figure is responses per second of CPU of
the server's process tree, which depends little on other work on the machine. All servers run and
are measured in rounds, one after the other; the table has each cell's round of median cost.

`mlctl up` is the same server as users run it: built into a Bento, behind Envoy, with a recorder;
its daemon and Envoy share the server's core. Its cost is the server's alone, Envoy's stands apart.

The limits are ONNX Runtime in this process by batch size, and an HTTP server in C without a model.
"of limit" compares with the cost of both together at the best batch of no more rows than
there are clients. Triton is its Python backend; a container's native backend may be faster.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.loadgen import build, run_closed
from benchmarks.protocols import Protocol
from benchmarks.result import BenchmarkResult, argument_parser, measuring
from benchmarks.servers import (
    ECHO,
    MLCTL,
    Cores,
    RunningServer,
    Server,
    deployment,
    echo_server,
    mlctl_server,
    peer_servers,
    running,
)
from benchmarks.workloads import NAMES, NetBundle, make_workload
from mlctl.services.model.session import Session, open_session

BATCHES = (1, 8, 16, 32, 64, 128)
_CLIENTS = (1, 64)
_WARM_SECONDS = 0.5
# A busier client may limit the throughput, never the cost.
_MAX_CLIENT_BUSY = 0.9


@dataclass(frozen=True, slots=True)
class OnlineCell:
    """One server, protocol and number of clients.

    Attributes:
        per_cpu_second: responses per second of the server's CPU.
        client_busy: the client's share of its core.
        mebibytes: the resident set of the server's largest process.
        proxy_us: microseconds of CPU per response of the Envoy in front; None without one.
    """

    server: str
    protocol: str
    clients: int
    per_second: float
    per_cpu_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    client_busy: float
    mebibytes: float
    proxy_us: float | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long to measure each cell, in each of how many rounds."""

    seconds: float
    rounds: int
    cores: Cores
    loadgen: Path

    def cells(self, servers: Sequence[RunningServer], workload: NetBundle) -> list[OnlineCell]:
        """Check every server's response, measure in rounds, and return the median cells."""
        pairs = [(each, protocol) for each in servers for protocol in each.server.protocols]
        for each, protocol in pairs:
            protocol.check(each.server.port_of(protocol), workload.answer)
        found: dict[tuple[str, str, int], list[OnlineCell]] = defaultdict(list)
        for _ in range(self.rounds):
            for each, protocol in pairs:
                for clients in _CLIENTS:
                    cell = self._cell(each, protocol, clients)
                    found[cell.server, cell.protocol, clients].append(cell)
        return [
            sorted(cells, key=lambda cell: cell.per_cpu_second)[len(cells) // 2]
            for cells in found.values()
        ]

    def _cell(self, running: RunningServer, protocol: Protocol, clients: int) -> OnlineCell:
        target = protocol.target(running.server.port_of(protocol))
        run_closed(self.loadgen, target, clients, _WARM_SECONDS)
        before, proxy_before = running.cpu_seconds(), running.proxy_cpu_seconds()
        load = run_closed(self.loadgen, target, clients, self.seconds)
        cpu = running.cpu_seconds() - before
        proxy_cpu = running.proxy_cpu_seconds() - proxy_before
        return OnlineCell(
            running.server.name,
            protocol.name,
            clients,
            load.succeeded / load.seconds,
            load.succeeded / cpu,
            load.p50_ms,
            load.p99_ms,
            load.failed,
            load.client_busy,
            running.mebibytes(),
            1e6 * proxy_cpu / load.succeeded if running.proxy else None,
        )

    def runtime_rates(self, session: Session, row: np.ndarray) -> dict[int, float]:
        """Return ONNX Runtime's rows per CPU-second by batch size, median of the rounds."""
        with self.cores.for_server():
            return {
                batch: median(
                    _rows_per_cpu_second(session, row, batch, self.seconds / 2)
                    for _ in range(self.rounds)
                )
                for batch in BATCHES
            }


def _rows_per_cpu_second(session: Session, row: np.ndarray, batch: int, seconds: float) -> float:
    inputs = {"x": np.repeat(row, batch, axis=0)}
    session.run(inputs)
    runs, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        session.run(inputs)
        runs += 1
    return batch * runs / (time.process_time() - cpu)


def limit_of(cells: Sequence[OnlineCell], rates: Mapping[int, float], clients: int) -> float:
    """Return the responses per CPU-second that ONNX Runtime and the C server allow together."""
    best = max(rate for batch, rate in rates.items() if batch <= clients)
    (echo,) = (
        each.per_cpu_second for each in cells if each.server == ECHO and each.clients == clients
    )
    return 1 / (1 / best + 1 / echo)


def report(
    result: BenchmarkResult, net: str, cells: Sequence[OnlineCell], rates: Mapping[int, float]
) -> None:
    """Add the tables of one net to `result`, and a chart of the cost at the most clients."""
    runtime = result.table(f"{net}: ONNX Runtime in process", "rows in a batch", "rows/CPU-s")
    for batch, rate in rates.items():
        runtime.add(batch, rate)
    table = result.table(
        f"{net}: servers",
        *("server", "protocol", "clients", "responses/CPU-s", "of limit", "mlctl is x"),
        *("Envoy us", "responses/s", "p50 ms", "p99 ms", "client busy", "MiB", "failed"),
    )
    own = {(c.protocol, c.clients): c.per_cpu_second for c in cells if c.server == MLCTL}
    for each in cells:
        # A server without V2 is compared with the binary protocol.
        reference = own.get((each.protocol, each.clients), own["V2 binary", each.clients])
        limit = limit_of(cells, rates, each.clients)
        table.add(
            each.server,
            each.protocol,
            each.clients,
            each.per_cpu_second,
            "" if each.server == ECHO else f"{each.per_cpu_second / limit:.0%}",
            "" if each.server in (MLCTL, ECHO) else f"{reference / each.per_cpu_second:.2f}",
            "" if each.proxy_us is None else each.proxy_us,
            each.per_second,
            each.p50_ms,
            each.p99_ms,
            f"{each.client_busy:.0%}" + ("!" if each.client_busy > _MAX_CLIENT_BUSY else ""),
            each.mebibytes,
            each.failed,
        )
    busiest = [each for each in cells if each.clients == max(_CLIENTS) and each.server != ECHO]
    values = {f"{each.server}, {each.protocol}": each.per_cpu_second for each in busiest}
    result.chart(f"{net}, {max(_CLIENTS)} clients", "responses per CPU-second", values)


def servers_of(workload: NetBundle, folder: Path, peers: Path | None) -> list[Server]:
    """Return this project's server without and with its access log, the limit, and the peers."""
    return [
        mlctl_server(workload, folder),
        mlctl_server(workload, folder, f"{MLCTL}, access log", access_log=True),
        echo_server(workload, folder, build("echo", folder)),
        *(peer_servers(workload, folder, peers) if peers is not None else ()),
    ]


def main() -> None:
    """Measure every net."""
    parser = argument_parser("online", __doc__)
    parser.add_argument("--nets", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--peers", type=Path, help="the folder of `benchmarks.peers install`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="per cell and round")
    options = parser.parse_args()
    cores = Cores.pick()
    with measuring("online", options.json) as result, cores.for_client():
        for net in options.nets:
            with (
                tempfile.TemporaryDirectory(prefix="mlctl-bench-") as scratch,
                ExitStack() as stack,
            ):
                folder = Path(scratch)
                workload = make_workload(net, folder / "model")
                loadgen = build("loadgen", folder)
                plan = Measurement(options.seconds, options.rounds, cores, loadgen)
                rates = plan.runtime_rates(open_session(workload.model), workload.row)
                peers = options.peers and options.peers.resolve()
                servers = [
                    stack.enter_context(running(each, cores))
                    for each in servers_of(workload, folder, peers)
                ]
                servers.append(stack.enter_context(deployment(workload, folder, cores)))
                report(result, net, plan.cells(servers, workload), rates)


if __name__ == "__main__":
    main()
