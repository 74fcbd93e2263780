"""The runners in one document: batch, stream and precomputed predictions.

Runs `benchmarks.batch` and `benchmarks.stream`, which have more options of their own,
`benchmarks.batch.kills`, `benchmarks.stream.kills` and `benchmarks.precomputed`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.batch import kills as batch_kills
from benchmarks.batch.__main__ import MODELS
from benchmarks.precomputed import measure_stores
from benchmarks.result import BenchmarkResult, argument_parser, measuring
from benchmarks.stream import kills
from mlctl.core.home import HOME_VARIABLE

_PARTS = ("batch", "stream", "batch-kills", "kills", "precomputed")


def run_program(name: str, folder: Path, *options: str) -> Any:
    """Run `benchmarks.NAME`; return its JSON document."""
    file = folder / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file), *options]
    subprocess.run(command, check=True)
    return json.loads(file.read_bytes())


def report_batch(document: Any, result: BenchmarkResult) -> None:
    """Add a table and a chart per model: CPU, rate and memory of each engine."""
    for model, engines in document.items():
        rows = MODELS[model][0]
        table = result.table(
            f"batch, {model}: {rows:,} rows",
            *("engine", "rows/s", "CPU-s per million rows", "peak MiB"),
        )
        cpu = {}
        for engine, runs in engines.items():
            cpu[engine] = median(run["cpu_seconds"] for run in runs) / rows * 1e6
            rate = rows / median(run["seconds"] for run in runs)
            table.add(engine, rate, cpu[engine], max(run["mebibytes"] for run in runs))
        result.chart(f"batch, {model}", "CPU-seconds per million rows", cpu)


def report_stream(document: Any, result: BenchmarkResult) -> None:
    """Add the table of every broker, payload and program, and a chart of the rates."""
    table = result.table(
        "stream", "broker and payload", "program", "messages/s", "CPU us", "p50 ms", "p99 ms"
    )
    rates = {}
    for broker, programs in document.items():
        for program, run in programs.items():
            rate = run["messages"] / run["seconds"]
            cpu = 1e6 * run["cpu"] / run["messages"]
            table.add(broker, program, rate, cpu, run.get("p50", ""), run.get("p99", ""))
            rates[f"{broker}, {program}"] = rate
    result.chart("stream", "messages per second", rates)


def main() -> None:
    """Run the chosen parts."""
    parser = argument_parser("runners", __doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--batch-peers", metavar="PYTHON", help="a Python with the batch peers")
    parser.add_argument("--kills", type=int, default=100, help="killed runs of each transport")
    parser.add_argument("--batch-kills", type=int, default=30, help="of each kind of output")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of a batch job that is killed")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="the cluster to kill runs on, alone")
    parser.add_argument("--seed", type=int, default=1, help="when runs are killed")
    parser.add_argument("--keys", type=int, default=1_000_000, help="precomputed predictions")
    options = parser.parse_args()
    peers = (
        ["--python", options.batch_peers] if options.batch_peers else ["--engines", "ours", "loop"]
    )
    with (
        measuring("runners", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-bench-") as name,
    ):
        folder = Path(name)
        if "batch" in options.parts:
            report_batch(run_program("batch", folder, *peers), result)
        if "stream" in options.parts:
            report_stream(run_program("stream", folder), result)
        if "batch-kills" in options.parts:
            batch_kills.measure(options.batch_kills, options.rows, options.seed, folder, result)
        if "kills" in options.parts:
            kills.measure(options.kills, options.seed, folder, result, options.kafka)
        if "precomputed" in options.parts:
            os.environ[HOME_VARIABLE] = name
            measure_stores(folder, options.keys, result)


if __name__ == "__main__":
    main()
