"""What the batcher does at three times what the model can: `python -m benchmarks.overload`.

The real batcher, event loop and model thread, with a dense network of 20 MFLOP a row that
ONNX Runtime runs on one thread; no network. Open loop: a request comes when it is due,
whatever became of those before, and its latency counts from then.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.workloads import BUCKETS, DENSE_WIDTHS, MAX_ROWS, write_dense
from bundle.clock import SystemClock
from bundle.errors import MlctlError
from services.online.batching.executor import Arrays, BatchExecutor
from services.online.batching.scheduler import Limits
from services.online.metrics.counts import BatchStats
from services.runtime.batch_costs import BatchCosts
from services.runtime.session import Session, open_session

SECONDS = 15.0
# A server that meets overload for the first time has a queue before it knows; told apart.
FIRST_SECONDS = 1.0
LOADS = (0.3, 0.6, 3.0)
ROUNDS = 3


class Model:
    """The session as the batcher sees it."""

    def __init__(self, session: Session) -> None:
        self.run = session.run

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        return int(inputs["x"].shape[0])


class Rows:
    """Counts rows and batches."""

    def __init__(self) -> None:
        self.rows = self.batches = 0

    def batch(self, stats: BatchStats) -> None:
        self.rows += stats.rows
        self.batches += 1

    def first_piece(self, seconds: float) -> None:
        """Nor are streams, of which there are none."""

    def queue_rows(self, rows: int) -> None:
        """The depth is not of interest here."""


@dataclass(frozen=True, slots=True)
class Result:
    """One load: rates in requests per second, times in milliseconds."""

    offered: float
    answered: float
    p50: float
    p99: float
    p99_settled: float
    refused_share: float
    refusal_p99: float
    mean_rows: float


def measure_costs(session: Session) -> dict[int, float]:
    """Seconds by rows: the median of nine runs."""
    costs = {}
    for rows in BUCKETS:
        x = {"x": np.ones((rows, DENSE_WIDTHS[0]), np.float32)}
        seconds = []
        for _ in range(10):
            start = time.perf_counter()
            session.run(x)
            seconds.append(time.perf_counter() - start)
        costs[rows] = sorted(seconds[1:])[4]
    return costs


async def offer(session: Session, costs: dict[int, float], rate: float) -> Result:
    """Ask at random moments, `rate` a second on average, for `SECONDS`."""
    meter, generator = Rows(), random.Random(1)
    limits = Limits(MAX_ROWS, 4096, linger=True)
    batching = BatchExecutor(Model(session), limits, SystemClock(), meter, costs=BatchCosts(costs))
    latencies: list[tuple[float, float]] = []
    refusals: list[float] = []
    x: Arrays = {"x": np.ones((1, DENSE_WIDTHS[0]), np.float32)}

    def ask(due: float) -> None:
        try:
            future = batching.submit(x, 30.0)
        except MlctlError:
            refusals.append(time.perf_counter() - due)
        else:
            future.add_done_callback(lambda _: latencies.append((due, time.perf_counter() - due)))

    due = start = time.perf_counter()
    while due < start + SECONDS:
        now = time.perf_counter()
        while due <= now:
            ask(due)
            due += generator.expovariate(rate)
        await asyncio.sleep(0.0002)
    asked_for = time.perf_counter() - start
    await batching.drain()
    batching.close()
    moments, seconds = np.array(latencies).T
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    settled = np.percentile(seconds[moments >= start + FIRST_SECONDS], 99) * 1e3
    refusal_p99 = np.percentile(refusals, 99) * 1e3 if refusals else 0.0
    total = len(latencies) + len(refusals)
    return Result(
        total / asked_for,
        len(latencies) / asked_for,
        float(p50),
        float(p99),
        float(settled),
        len(refusals) / total,
        float(refusal_p99),
        meter.rows / meter.batches,
    )


def main() -> None:
    """Print the table: in each round every load, and the costs anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dense.onnx"
        write_dense(path, DENSE_WIDTHS)
        session = open_session(path)
    gc.freeze()  # as the server does, or the collector stops everything for 40 ms now and then
    console = Console(width=120)
    for _ in range(ROUNDS):
        costs = measure_costs(session)
        capacity = MAX_ROWS / costs[MAX_ROWS]
        each = ", ".join(f"{rows} rows {seconds * 1e3:.1f} ms" for rows, seconds in costs.items())
        busy = os.getloadavg()[0]
        console.print(f"ONNX Runtime alone: {each}; {capacity:.0f} rows/s; load {busy:.1f}")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in (
            *("load", "offered/s", "answered/s", "of alone", "p50 ms", "p99 ms", "after 1 s"),
            *("refused", "in ms", "rows"),
        ):
            table.add_column(name, justify="right")
        for load in LOADS:
            result = asyncio.run(offer(session, costs, load * capacity))
            table.add_row(f"{load:.1f}x", *cells(result, capacity))
        console.print(table)


def cells(result: Result, capacity: float) -> list[str]:
    """A result as the table has it."""
    return [
        f"{result.offered:.0f}",
        f"{result.answered:.0f}",
        f"{result.answered / capacity:.0%}",
        f"{result.p50:.1f}",
        f"{result.p99:.1f}",
        f"{result.p99_settled:.1f}",
        f"{result.refused_share:.1%}",
        f"{result.refusal_p99:.1f}",
        f"{result.mean_rows:.1f}",
    ]


if __name__ == "__main__":
    main()
