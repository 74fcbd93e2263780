"""What a served answer costs beside ONNX Runtime alone, in answers per second of CPU.

The server's CPU seconds are those of its whole process tree, so that the client's share of
the machine does not count. One tiny model (64 features), one row in each request.
"""

from __future__ import annotations

import json
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
CONNECTIONS = (1, 16)
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: a way to ask, at a number of connections."""

    way: str
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


def runtime_alone(model: Path, row: np.ndarray) -> float:
    """Runs of batch 1 in this process per second of its CPU."""
    session = open_session(model)
    runs, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS:
        session.run({"x": row})
        runs += 1
    return runs / (time.process_time() - cpu)


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all below it."""
    parent = psutil.Process(pid)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def measure(port: int, pid: int, row: np.ndarray) -> Iterator[Row]:
    """Every way to ask at every number of connections, after one second of warm-up each."""
    for way, request in requests(row).items():
        for connections in CONNECTIONS:
            run_load(port, request, connections, 1.0)
            before = cpu_seconds(pid)
            load = run_load(port, request, connections, SECONDS)
            used = cpu_seconds(pid) - before
            if load.failed:
                raise SystemExit(f"{way}: {load.failed} requests failed")
            yield Row(way, connections, load, load.answered / used)


def main() -> None:
    """Measure and print the table."""
    row = np.linspace(0, 1, FEATURES, dtype=np.float32)[None]
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder:
        bundle = make_bundle(Path(folder) / "model", features=FEATURES)
        limit = runtime_alone(bundle.root / MODEL_NAME, row)
        server = launch(
            "services.service:service",
            Path(folder) / "log",
            cwd=ROOT,
            bento_home=Path(folder) / "bentoml",
            environment={"MLCTL_BUNDLE": str(bundle.root)},
        )
        with running(server):
            rows = list(measure(server.port, server.process.pid, row))
    show(rows, limit)


def show(rows: list[Row], limit: float) -> None:
    """Print one line for each cell, as a share of what the runtime does alone."""
    table = Table(title="Answers per CPU second of the server, one row in each request")
    for name in ("Way", "Clients", "req/s", "p50 ms", "p99 ms", "per CPU s", "of ORT"):
        table.add_column(name, justify="left" if name == "Way" else "right", no_wrap=True)
    for row in rows:
        rate = row.load.answered / row.load.seconds
        table.add_row(
            row.way,
            str(row.connections),
            f"{rate:,.0f}",
            f"{row.load.p50_ms:.2f}",
            f"{row.load.p99_ms:.2f}",
            f"{row.per_cpu_second:,.0f}",
            f"{row.per_cpu_second / limit:.1%}",
        )
    table.add_row("ONNX Runtime alone", "-", "-", "-", "-", f"{limit:,.0f}", "100%")
    Console().print(table)
