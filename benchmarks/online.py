"""What a served answer costs beside ONNX Runtime alone, in answers per second of CPU.

The server's CPU seconds are those of its whole process tree, so that the client's share of
the machine does not count; where there are two cores, each has one. One tiny model (64
features), one row in each request. V2 is asked both ways in the same run: answered in the
HTTP protocol, and through ASGI (`MLCTL_LEAN_HTTP=0`); the ratio is of the one to the other.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.load import Load, post, run_load
from bundle.manifest import MODEL_NAME
from services.session import open_session
from tests.support.bundles import make_bundle
from tests.support.serving import launch, running

FEATURES = 64
SECONDS = 3.0
CONNECTIONS = (1, 16, 64)
BATCHES = (1, 16, 64)
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: a way to ask a server, lean or not, at a number of connections."""

    way: str
    lean: bool
    connections: int
    load: Load
    per_cpu_second: float


def requests(row: np.ndarray) -> Mapping[str, bytes]:
    """The request bytes of each way to ask for `row`, float32 [1, features]."""
    tensor = {"name": "x", "shape": list(row.shape), "datatype": "FP32"}
    whole = json.dumps({"inputs": [{**tensor, "data": row.ravel().tolist()}]}).encode()
    size = {"parameters": {"binary_data_size": row.nbytes}}
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [{**tensor, **size}], "outputs": wanted}).encode()
    path, plain = "/v2/models/tiny/infer", {"Content-Type": "application/json"}
    typed = json.dumps({"x": row.tolist()}).encode()
    return {
        "V2 binary": post(
            path,
            head + row.tobytes(),
            {
                "Content-Type": "application/octet-stream",
                "Inference-Header-Content-Length": str(len(head)),
            },
        ),
        "V2 JSON": post(path, whole, plain),
        "/predict JSON": post("/predict", typed, plain),
    }


def runtime_alone(model: Path, row: np.ndarray, batch: int) -> float:
    """Rows that batches of `batch` answer in this process per second of its CPU."""
    session = open_session(model)
    inputs = {"x": np.repeat(row, batch, axis=0)}
    runs, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS:
        session.run(inputs)
        runs += 1
    return batch * runs / (time.process_time() - cpu)


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all below it."""
    parent = psutil.Process(pid)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def keep_apart(pid: int) -> None:
    """Give the server's processes one core and this one another, if there are two."""
    first, *others = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, {others[0]})
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {first})


def measure(port: int, pid: int, row: np.ndarray, *, lean: bool) -> Iterator[Row]:
    """Every way to ask at every number of connections, after one second of warm-up each."""
    for way, request in requests(row).items():
        if not lean and not way.startswith("V2"):
            continue  # it takes the same way on both
        for connections in CONNECTIONS:
            run_load(port, request, connections, 1.0)
            before = cpu_seconds(pid)
            load = run_load(port, request, connections, SECONDS)
            used = cpu_seconds(pid) - before
            if load.failed:
                raise SystemExit(f"{way}: {load.failed} requests failed")
            yield Row(way, lean, connections, load, load.answered / used)


def serve_and_measure(folder: Path, bundle: Path, row: np.ndarray, *, lean: bool) -> list[Row]:
    """The rows of one server."""
    server = launch(
        "services.service:service",
        folder / f"log-{lean}",
        cwd=ROOT,
        bento_home=folder / "bentoml",
        environment={"MLCTL_BUNDLE": str(bundle), "MLCTL_LEAN_HTTP": str(int(lean))},
    )
    cores = os.sched_getaffinity(0)
    try:
        with running(server):
            keep_apart(server.process.pid)
            return list(measure(server.port, server.process.pid, row, lean=lean))
    finally:
        os.sched_setaffinity(0, cores)


def main() -> None:
    """Measure and print the table."""
    row = np.linspace(0, 1, FEATURES, dtype=np.float32)[None]
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as name:
        folder = Path(name)
        bundle = make_bundle(folder / "model", features=FEATURES)
        model = bundle.root / MODEL_NAME
        limits = {batch: runtime_alone(model, row, batch) for batch in BATCHES}
        rows = [
            found
            for lean in (True, False)
            for found in serve_and_measure(folder, bundle.root, row, lean=lean)
        ]
    show(rows, limits)


def show(rows: list[Row], limits: Mapping[int, float]) -> None:
    """Print one line for each cell, as a share of what the runtime does alone at batch 1."""
    table = Table(title="Answers per CPU second of the server, one row in each request")
    names = ("Way", "Clients", "req/s", "p50 ms", "p99 ms", "per CPU s", "of ORT", "lean/ASGI")
    for name in names:
        table.add_column(name, justify="left" if name == "Way" else "right", no_wrap=True)
    plain = {(row.way, row.connections): row.per_cpu_second for row in rows if not row.lean}
    for row in rows:
        other = plain.get((row.way, row.connections))
        table.add_row(
            row.way if row.lean else f"{row.way}, ASGI",
            str(row.connections),
            f"{row.load.answered / row.load.seconds:,.0f}",
            f"{row.load.p50_ms:.2f}",
            f"{row.load.p99_ms:.2f}",
            f"{row.per_cpu_second:,.0f}",
            f"{row.per_cpu_second / limits[1]:.1%}",
            f"{row.per_cpu_second / other:.2f}" if row.lean and other else "-",
        )
    for batch, limit in limits.items():
        share = f"{limit / limits[1]:.0%}"
        table.add_row(f"ONNX Runtime, batch {batch}", *"----", f"{limit:,.0f}", share, "-")
    Console().print(table)
