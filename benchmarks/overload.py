"""A real server under open-loop load at 0.3, 0.6 and 3 times its capacity.

The capacity is the throughput of 64 clients in a closed loop. In the open loop a request becomes
due at a random moment, takes a free connection or a new one, and its latency counts from then.
A client at its limit of connections queues requests itself, so the latency from sending to the
answer is reported apart: that part is the server's. The first second is reported apart, too:
connections are opened in it, and the server meets the overload. The server with all its processes
has one core, the client the other; then both have both, as the loop that rejects and the thread of
the model have on a larger machine.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.loadgen import FAILED, HINTED, SUCCESS, OpenLoad, build, run_closed, run_open
from benchmarks.protocols import Protocol
from benchmarks.result import BenchmarkResult, argument_parser, measuring
from benchmarks.servers import Cores, RunningServer, mlctl_server, running
from benchmarks.workloads import NAMES, make_workload
from mlctl.services.online.grpc.http2.hpack import encode

FACTORS = (0.3, 0.6, 3.0)
_CLIENTS = 64
_CAPACITY_SECONDS = 4.0
_RECOVERY_SECONDS = 2.0
_FIRST_SECONDS = 1.0
# Bytes in the head of a rejection, and of one with a retry hint. gRPC's are HPACK literals.
_REJECTION = {
    "http": (b" 503 ", b"\r\nretry-after: "),
    "grpc": (encode(((b"grpc-status", b"8"),)), encode(((b"retry-after", b"1"),))),
}
_COLUMNS = (
    *("load", "offered/s", "answered/s", "of capacity", "p50 ms", "p99 ms"),
    *("from sending p50 ms", "p99 ms"),
    *("rejections p50 ms", "p99 ms", "with hint", "failed", "sent late p99 ms"),
)


@dataclass(frozen=True, slots=True)
class OverloadResult:
    """A part of one load: rates per second, times in milliseconds, `hinted` a share of 1."""

    offered: float
    answered: float
    p50: float
    p99: float
    sent_p50: float
    sent_p99: float
    rejection_p50: float
    rejection_p99: float
    hinted: float
    failed: int
    late_p99: float

    def cells(self, capacity: float) -> list[object]:
        """Return the cells of _COLUMNS after the first."""
        share = f"{self.answered / capacity:.0%}"
        latencies = (self.p50, self.p99, self.sent_p50, self.sent_p99)
        served = (self.offered, self.answered, share, *latencies)
        rejected: tuple[object, ...] = ("", "", "")
        if self.rejection_p50 > 0:
            rejected = (self.rejection_p50, self.rejection_p99, f"{self.hinted:.0%}")
        return [*served, *rejected, self.failed, self.late_p99]


def summarize(load: OpenLoad, start: float, stop: float) -> OverloadResult:
    """Summarize the requests that were due from `start` to `stop`, in seconds.

    The rate of responses counts those that ended in this time, whenever they were due.
    """
    ended = load.due + load.latency
    in_time = (load.outcome == SUCCESS) & (ended >= start) & (ended < stop)
    chosen = (load.due >= start) & (load.due < stop)
    outcome, latency = load.outcome[chosen], load.latency[chosen]
    answered = outcome == SUCCESS
    rejected = ~answered & (outcome != FAILED)
    count = int(np.count_nonzero(rejected))
    return OverloadResult(
        len(outcome) / (stop - start),
        np.count_nonzero(in_time) / (stop - start),
        *_percentiles_ms(latency[answered]),
        *_percentiles_ms((latency - load.late[chosen])[answered]),
        *_percentiles_ms(latency[rejected]),
        np.count_nonzero(outcome == HINTED) / count if count else 0.0,
        int(np.count_nonzero(outcome == FAILED)),
        _percentiles_ms(load.late[chosen])[1],
    )


def _percentiles_ms(seconds: np.ndarray) -> tuple[float, float]:
    if not len(seconds):
        return 0.0, 0.0
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return float(p50), float(p99)


@dataclass(frozen=True, slots=True)
class Overload:
    """Measures one server."""

    loadgen: Path
    seconds: float
    result: BenchmarkResult

    def measure(self, name: str, server: RunningServer, protocol: Protocol) -> None:
        """Find the capacity, and add a table `name` of all loads and of the recovery."""
        target = protocol.target(server.server.port_of(protocol))
        run_closed(self.loadgen, target, _CLIENTS, 1.0)
        closed = run_closed(self.loadgen, target, _CLIENTS, _CAPACITY_SECONDS)
        capacity = closed.succeeded / closed.seconds
        title = f"{name}: {capacity:,.0f}/s in a closed loop of {_CLIENTS} clients"
        columns = (*_COLUMNS, "connections", "client busy", "server busy")
        table = self.result.table(title, *columns)
        rejection, shares = _REJECTION[protocol.transport], {}
        for factor in FACTORS:
            before, start = server.cpu_seconds(), time.perf_counter()
            load = run_open(self.loadgen, target, factor * capacity, self.seconds, rejection)
            busy = (server.cpu_seconds() - before) / (time.perf_counter() - start)
            first = summarize(load, 0.0, _FIRST_SECONDS)
            rest = summarize(load, _FIRST_SECONDS, self.seconds)
            table.add(f"{factor:g}x, first second", *first.cells(capacity), "", "", "")
            shown = (load.connections, f"{load.client_busy:.0%}", f"{busy:.0%}")
            table.add(f"{factor:g}x", *rest.cells(capacity), *shown)
            shares[f"{factor:g}x"] = rest.answered / capacity * 100
        after = run_closed(self.loadgen, target, _CLIENTS, _RECOVERY_SECONDS)
        rate = after.succeeded / after.seconds
        empty = [""] * (len(columns) - 6)
        closed_loop = f"closed loop, {_RECOVERY_SECONDS:g} s after it"
        share = f"{rate / capacity:.0%}"
        table.add(closed_loop, "", rate, share, after.p50_ms, after.p99_ms, *empty)
        self.result.chart(f"{name}: answered", "% of capacity", shares)


def main() -> None:
    """Measure every net over V2 binary and gRPC."""
    parser = argument_parser("overload", __doc__)
    parser.add_argument("--nets", nargs="+", choices=NAMES, default=["tiny", "dense"])
    parser.add_argument("--seconds", type=float, default=15.0, help="per load")
    options = parser.parse_args()
    with measuring("overload", options.json) as result:
        for net, shared in itertools.product(options.nets, (False, True)):
            cores = Cores.pick(shared=shared)
            with cores.for_client(), tempfile.TemporaryDirectory(prefix="mlctl-bench-") as scratch:
                folder = Path(scratch)
                workload = make_workload(net, folder / "model")
                overload = Overload(build("loadgen", folder), options.seconds, result)
                with running(mlctl_server(workload, folder), cores) as server:
                    for protocol in server.server.protocols:
                        if protocol.name != "V2 JSON":
                            protocol.check(server.server.port_of(protocol), workload.answer)
                            where = "both cores" if shared else "one core"
                            overload.measure(f"{net}, {protocol.name}, {where}", server, protocol)


if __name__ == "__main__":
    main()
