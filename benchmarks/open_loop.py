"""A real server at three times what it can do: `python -m benchmarks.open_loop`.

The server and all its processes have one core, the client the other; the dense net, 20 MFLOP a
row. What 64 clients in a closed loop get is the capacity. Then an open loop, in which a request
comes when it is due, on any connection that is free or on a new one, and its latency counts
from then. The first second is told apart: in it connections are made and overload is learned.
With `--shared` the server may use the client's core as well, so that its loop and its model's
thread have one each, as far as the client leaves it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import Arena
from benchmarks.native import (
    ANSWERED,
    FAILED,
    HINTED,
    Offered,
    build,
    run_load,
    run_open,
)
from benchmarks.online import Up, pick_cores, up
from benchmarks.ways import Way
from benchmarks.workloads import make_workload
from services.online.grpc.http2.hpack import encode

LOADS = (0.3, 0.6, 3.0)
CLIENTS = 64
SECONDS = 15.0
CAPACITY_SECONDS = 4.0
_FIRST_SECONDS = 1.0
_NAMES = ("V2 binary", "gRPC")
# In the head of a refusal, and in that of one with a hint. gRPC's are packed, but always alike.
_REFUSAL = {
    "http": (b" 503 ", b"\r\nretry-after: "),
    "grpc": (encode(((b"grpc-status", b"8"),)), encode(((b"retry-after", b"1"),))),
}


@dataclass(frozen=True, slots=True)
class Result:
    """A part of one load: rates in requests per second, times in milliseconds, shares of 1."""

    offered: float
    answered: float
    p50: float
    p99: float
    refusal_p50: float
    refusal_p99: float
    hinted: float
    failed: int
    late_p99: float


def summarize(found: Offered, start: float, stop: float) -> Result:
    """What became of those that were due from `start` to `stop`, in seconds."""
    chosen = (found.due >= start) & (found.due < stop)
    outcome, latency = found.outcome[chosen], found.latency[chosen]
    good = outcome == ANSWERED
    refused = ~good & (outcome != FAILED)
    count = int(np.count_nonzero(refused))
    seconds = stop - start
    return Result(
        len(outcome) / seconds,
        np.count_nonzero(good) / seconds,
        *_percentiles(latency[good]),
        *_percentiles(latency[refused]),
        np.count_nonzero(outcome == HINTED) / count if count else 0.0,
        int(np.count_nonzero(outcome == FAILED)),
        _percentiles(found.late[chosen])[1],
    )


def _percentiles(seconds: np.ndarray) -> tuple[float, float]:
    """The median and the 99th, in milliseconds."""
    if not len(seconds):
        return 0.0, 0.0
    middle, high = np.percentile(seconds, [50, 99]) * 1e3
    return float(middle), float(high)


class Bench:
    """One server that is asked by `way` after way."""

    def __init__(self, folder: Path, loads: Sequence[float], seconds: float) -> None:
        self._folder = folder
        self._loads = loads
        self._seconds = seconds
        self._closed = build("loadgen", folder)
        self._open = build("open", folder)
        self._console = Console(width=150)

    def measure(self, server: Up, way: Way) -> None:
        """Find the capacity and print a table of all loads."""
        port = server.contender.port_of(way)
        request = self._folder / "request"
        request.write_bytes(way.request)
        for seconds in (1.0, CAPACITY_SECONDS):
            load = run_load(self._closed, way.kind, port, request, CLIENTS, seconds)
        capacity = load.answered / load.seconds
        self._console.print(
            f"{way.name}: {CLIENTS} clients in a closed loop get {capacity:,.0f}/s "
            f"(p50 {load.p50_ms:.1f} ms, p99 {load.p99_ms:.1f} ms, failed {load.failed})"
        )
        table = _table()
        for share in self._loads:
            before, start = server.cpu_seconds(), time.perf_counter()
            rate, refusal = share * capacity, _REFUSAL[way.kind]
            found = run_open(self._open, way.kind, port, request, rate, self._seconds, refusal)
            busy = (server.cpu_seconds() - before) / (time.perf_counter() - start)
            cores = (found.cpu_share, busy)
            first = summarize(found, 0.0, _FIRST_SECONDS)
            rest = summarize(found, _FIRST_SECONDS, self._seconds)
            table.add_row(f"{share:.1f}x, first second", *_cells(first, capacity))
            rest_cells = _cells(rest, capacity)
            table.add_row(
                f"{share:.1f}x", *rest_cells, str(found.connections), *map("{:.0%}".format, cores)
            )
        self._console.print(table)


def _table() -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("load", no_wrap=True)
    for name in (
        *("offered/s", "answered/s", "share", "p50 ms", "p99 ms", "refused p50", "p99 ms"),
        *("with hint", "failed", "late p99", "connections", "client", "server"),
    ):
        table.add_column(name, justify="right")
    return table


def _cells(result: Result, capacity: float) -> list[str]:
    refused = result.refusal_p50 > 0
    return [
        f"{result.offered:,.0f}",
        f"{result.answered:,.0f}",
        f"{result.answered / capacity:.0%}",
        f"{result.p50:.1f}",
        f"{result.p99:.1f}",
        f"{result.refusal_p50:.1f}" if refused else "-",
        f"{result.refusal_p99:.1f}" if refused else "-",
        f"{result.hinted:.0%}" if refused else "-",
        str(result.failed),
        f"{result.late_p99:.1f}",
    ]


def measure_server(
    names: Sequence[str] = _NAMES,
    loads: Sequence[float] = LOADS,
    seconds: float = SECONDS,
    *,
    shared: bool = False,
) -> None:
    """Start the server and print a table for each way to ask it."""
    whole, cores = sorted(os.sched_getaffinity(0)), pick_cores(shared=shared)
    os.sched_setaffinity(0, {cores.client})
    try:
        with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as scratch:
            folder = Path(scratch)
            workload = make_workload("dense", folder / "model")
            bench = Bench(folder, loads, seconds)
            contender = Arena(workload, folder, None, folder).ours()
            with up(contender, cores) as server:
                for way in contender.ways:
                    if way.name in names:
                        way.check(contender.port_of(way), workload.answer)
                        bench.measure(server, way)
    finally:
        os.sched_setaffinity(0, whole)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_loop", description=__doc__)
    parser.add_argument(
        "--shared", action="store_true", help="the server has the client's core, too"
    )
    measure_server(shared=parser.parse_args().shared)


if __name__ == "__main__":
    main()
