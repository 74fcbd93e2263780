"""Rows per second at batch sizes 1 to 64 on one execution provider.

With `--provider cpu` the curve is measured on any machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.result import BenchmarkResult, argument_parser, measuring
from benchmarks.workloads import MAX_ROWS, NAMES, NetBundle, make_workload
from mlctl.services.model.session import open_session

BATCHES = (1, 2, 4, 8, 16, 32, MAX_ROWS)
PROVIDERS = ("cpu", "cuda", "tensorrt")
_RUNS = 50
_WARM_RUNS = 5
_SECONDS = 2.0
Run = Callable[[np.ndarray], np.ndarray]
Curve = Mapping[int, float]


def measure_curve(run: Run, row: np.ndarray) -> Curve:
    """Return the median seconds of a run by its rows, copies to and from the device included."""
    found = {}
    for batch in BATCHES:
        rows = np.ascontiguousarray(np.repeat(row, batch, axis=0))
        for _ in range(_WARM_RUNS):
            run(rows)
        seconds: list[float] = []
        while len(seconds) < _RUNS and sum(seconds) < _SECONDS:
            start = time.perf_counter()
            run(rows)
            seconds.append(time.perf_counter() - start)
        found[batch] = median(seconds)
    return found


def gain(curve: Curve) -> float:
    """Return how many times as fast the largest batch is as its rows one by one."""
    largest = max(curve)
    return largest * curve[1] / curve[largest]


def runs_of(workload: NetBundle, provider: str) -> dict[str, Run]:
    """Return the engines for `workload` on `provider`."""
    batching = workload.bundle.manifest.batching.model_copy(
        update={"buckets": BATCHES, "max_rows": MAX_ROWS}
    )
    session = open_session(workload.model, provider, batching=batching)
    return {provider: lambda rows: session.run({"x": rows})["y"]}


def measure(net: str, provider: str, result: BenchmarkResult) -> None:
    """Add the table and chart of one net.

    PROVIDER_UNAVAILABLE if this machine lacks the provider; SystemExit if a response is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as scratch:
        workload = make_workload(net, Path(scratch) / "model")
        curves = {}
        for name, run in runs_of(workload, provider).items():
            if not np.allclose(run(workload.row), workload.answer, atol=1e-2):
                raise SystemExit(f"{net}, {name}: the response differs from the CPU's")
            curves[name] = measure_curve(run, workload.row)
    columns = [column for name in curves for column in (f"{name}, ms", f"{name}, rows/s")]
    table = result.table(f"{net} on {provider}", "rows in a batch", *columns)
    for batch in BATCHES:
        cells = [(curve[batch] * 1e3, batch / curve[batch]) for curve in curves.values()]
        table.add(batch, *(cell for pair in cells for cell in pair))
    for name, curve in curves.items():
        rates = {f"{batch} rows": batch / seconds for batch, seconds in curve.items()}
        title = f"{net}, {name}: batch of {max(curve)} is {gain(curve):.1f} times one by one"
        result.chart(title, "rows per second", rates)


def main() -> None:
    """Measure every net."""
    parser = argument_parser("gpu", __doc__)
    parser.add_argument("--provider", choices=PROVIDERS, default="cuda")
    parser.add_argument("--nets", nargs="+", choices=NAMES, default=list(NAMES))
    options = parser.parse_args()
    with measuring("gpu", options.json) as result:
        for net in options.nets:
            measure(net, options.provider, result)


if __name__ == "__main__":
    main()
