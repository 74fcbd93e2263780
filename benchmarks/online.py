"""What a served answer costs, beside other servers and the limits, in the same run.

One row in each request. In the ways called "mixed" every request has other tensors, another
X-Request-Id, traceparent and V2 id, as behind a proxy. A server and all its processes have one
core, the client another; the figure is answers per second of the CPU of the server's whole
process tree, so that neighbours count little. All servers stay up and take turns in rounds; the
table has medians.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from benchmarks.contenders import OURS, Arena, Contender
from benchmarks.native import build, run_load
from benchmarks.report import Limits, Row, print_report
from benchmarks.ways import Way
from benchmarks.workloads import NAMES, Workload, make_workload
from services.runtime.session import Session, open_session

BATCHES = (1, 8, 32, 64, 128)
_WARM_SECONDS = 0.5
_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Cores:
    """The server's cores and the client's; the same one if there is no other."""

    server: frozenset[int]
    client: int

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run what is within, and what it starts, on the server's cores."""
        os.sched_setaffinity(0, self.server)
        try:
            yield
        finally:
            os.sched_setaffinity(0, {self.client})


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: `seconds` for each cell in each of `rounds`."""

    clients: Sequence[int]
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Up:
    """A contender that runs."""

    contender: Contender
    process: psutil.Process

    def tree(self) -> list[psutil.Process]:
        """The server's processes."""
        return [self.process, *self.process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """User and system seconds of all of them."""
        times = [each.cpu_times() for each in self.tree()]
        return sum(each.user + each.system for each in times)

    def mebibytes(self) -> float:
        """What the largest of them keeps in memory: the worker."""
        largest: float = max(each.memory_info().rss for each in self.tree())
        return largest / 2**20


@contextmanager
def up(contender: Contender, cores: Cores) -> Iterator[Up]:
    """Start `contender` on the server's cores, prove its answers, and stop it at the end."""
    with cores.serving():
        process = contender.start()
    try:
        yield Up(contender, psutil.Process(process.pid))
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and whatever it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # the next signal is for what is left
            process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def runtime_alone(session: Session, row: np.ndarray, batch: int, seconds: float) -> float:
    """Rows that batches of `batch` answer in this process per second of its CPU."""
    inputs = {"x": np.repeat(row, batch, axis=0)}
    session.run(inputs)
    runs, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        session.run(inputs)
        runs += 1
    return batch * runs / (time.process_time() - cpu)


class Bench:
    """One workload's run: the servers that are up, and the rows so far."""

    def __init__(self, workload: Workload, folder: Path, plan: Plan, cores: Cores) -> None:
        self._workload = workload
        self._plan = plan
        self._cores = cores
        self._program = build("loadgen", folder)
        self._folder = folder
        self._session = open_session(workload.model)
        self._alone: dict[int, list[float]] = defaultdict(list)
        self._rows: dict[tuple[str, str, int], list[Row]] = defaultdict(list)

    def run(self, contenders: Sequence[Contender]) -> tuple[list[Row], Limits]:
        """Start all, let them take turns, and return the medians."""
        with ExitStack() as stack:
            servers = [stack.enter_context(up(each, self._cores)) for each in contenders]
            for server in servers:
                for way in server.contender.ways:
                    way.check(server.contender.port_of(way), self._workload.answer)
            for _ in range(self._plan.rounds):
                self._measure_limit()
                for server in servers:
                    for way in server.contender.ways:
                        self._measure(server, way)
        rows = [_median_row(each) for each in self._rows.values()]
        return rows, {batch: median(found) for batch, found in self._alone.items()}

    def _measure_limit(self) -> None:
        with self._cores.serving():
            for batch in BATCHES:
                rate = runtime_alone(
                    self._session, self._workload.row, batch, self._plan.seconds / 2
                )
                self._alone[batch].append(rate)

    def _measure(self, server: Up, way: Way) -> None:
        contender = server.contender
        request = self._folder / "request"
        request.write_bytes(way.request)
        port, fields = contender.port_of(way), way.fields
        for clients in self._plan.clients:
            run_load(self._program, way.kind, port, request, clients, _WARM_SECONDS, fields)
            before = server.cpu_seconds()
            load = run_load(
                self._program, way.kind, port, request, clients, self._plan.seconds, fields
            )
            used = server.cpu_seconds() - before
            row = Row(
                contender.name,
                way.name,
                clients,
                load.answered / load.seconds,
                load.p50_ms,
                load.p99_ms,
                load.answered / used,
                load.failed,
                load.cpu_share,
                used / load.seconds,
                server.mebibytes(),
            )
            self._rows[contender.name, way.name, clients].append(row)


def _median_row(rows: Sequence[Row]) -> Row:
    """The row whose cost is the median one, so that its figures belong together."""
    return sorted(rows, key=lambda row: row.per_cpu_second)[len(rows) // 2]


def pick_cores(*, shared: bool = False) -> Cores:
    """The first two that this process may use; if `shared` the server has the client's, too."""
    first, *others = sorted(os.sched_getaffinity(0))
    client = others[0] if others else first
    return Cores(frozenset({first, client} if shared else {first}), client)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online", description=__doc__)
    parser.add_argument("--nets", nargs="+", choices=NAMES, default=["tiny"])
    parser.add_argument("--peers", type=Path, help="what `benchmarks.peers install` made")
    parser.add_argument("--only", nargs="+", help="contenders whose names begin so; ours always")
    parser.add_argument("--ways", nargs="+", help="ways whose names contain one of these")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    parser.add_argument("--gpu", action="store_true", help="the batching curve on a GPU instead")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    """Measure and print one table for each net."""
    options = arguments(words)
    if options.gpu:
        from benchmarks.gpu import measure_gpu

        measure_gpu()
        return
    plan = Plan(options.clients, options.rounds, options.seconds)
    whole = sorted(os.sched_getaffinity(0))
    cores = pick_cores()
    os.sched_setaffinity(0, {cores.client})
    documents = []
    try:
        for name in options.nets:
            with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as scratch:
                folder = Path(scratch)
                workload = make_workload(name, folder / "model")
                contenders = choose(workload, folder, options)
                rows, limits = Bench(workload, folder, plan, cores).run(contenders)
            print_report(name, rows, limits, OURS)
            documents.append({"net": name, "limits": limits, "rows": list(map(asdict, rows))})
    finally:
        os.sched_setaffinity(0, whole)
    if options.json is not None:
        options.json.write_text(json.dumps(documents, indent=1))


def choose(workload: Workload, folder: Path, options: argparse.Namespace) -> list[Contender]:
    """The contenders that the command line asks for."""
    peers = None if options.peers is None else options.peers.resolve()
    arena = Arena(workload, folder, peers, build("echo", folder))
    found = arena.contenders()
    if options.only is not None:
        starts = (OURS, *options.only)
        found = [each for each in found if each.name.startswith(starts)]
    if options.ways is not None:
        wanted = (*options.ways, "no model")
        found = [
            replace(
                each, ways=tuple(way for way in each.ways if any(w in way.name for w in wanted))
            )
            for each in found
        ]
    return found


if __name__ == "__main__":
    main()
