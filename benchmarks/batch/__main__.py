"""Measure and print: `python -m benchmarks.batch --python PEERS/bin/python`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from benchmarks.batch.measure import CommandCost, measure
from benchmarks.workloads import make_workload

ENGINES = ("ours", "loop", "polars")
# The rows of each model, and the best rows in a call of the other engines.
MODELS: Mapping[str, tuple[int, int]] = {"light": (2_000_000, 4096), "heavy": (400_000, 256)}
_GROUP = 100_000
_WIDTH = 64


def write_rows(path: Path, rows: int, *, wide: bool) -> None:
    """`id` and 64 floats, as one column of lists or as 64 columns, in groups of 100,000 rows."""
    random = np.random.default_rng(1)
    writer = None
    for start in range(0, rows, _GROUP):
        x = random.normal(size=(min(_GROUP, rows - start), _WIDTH)).astype(np.float32)
        ids = pa.array(np.arange(start, start + len(x)))
        if wide:
            named = {f"x_{index}": np.ascontiguousarray(x[:, index]) for index in range(_WIDTH)}
            table = pa.table({"id": ids, **named})
        else:
            column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), _WIDTH)
            table = pa.table({"id": ids, "x": column})
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=_GROUP)
    if writer is not None:
        writer.close()


def command_of(engine: str, python: str, folder: Path, batch: int, threads: int) -> list[str]:
    """What runs `engine` over the rows in `folder`, into its `out`."""
    rows, out, model = folder / "rows.parquet", folder / "out", folder / "model"
    if engine == "ours":
        code = "from mlctl.cli.main import main; main()"
        run = ["batch", "run", str(model), "--in", str(rows), "--out", str(out), "--keep", "id"]
        return [sys.executable, "-c", code, *run, "--threads", str(threads)]
    script = str(Path(__file__).with_name("engines.py"))
    paths = ["--model", str(model / "model.onnx"), "--rows", str(rows), "--out", str(out)]
    how = ["--threads", str(threads), "--batch", str(batch)]
    names = parquet.read_schema(rows).names
    return [python, script, engine, *paths, *how, *([] if "x" in names else ["--wide"])]


def answered(out: Path) -> tuple[int, float]:
    """How many different ids are answered, and the sum of the answers."""
    files = [out] if out.is_file() else sorted(out.rglob("*.parquet"))
    parts = [parquet.read_table(file, columns=["id", "y"], partitioning=None) for file in files]
    ids = np.concatenate([part["id"].to_numpy() for part in parts])
    return len(np.unique(ids)), float(sum(part["y"].to_numpy().sum(dtype=float) for part in parts))


def run_model(
    model: str, engines: Sequence[str], options: argparse.Namespace
) -> dict[str, list[CommandCost]]:
    """The costs of each engine, which take turns; SystemExit if their answers differ."""
    rows, batch = MODELS[model]
    rows = max(1, int(rows * options.scale))
    costs: dict[str, list[CommandCost]] = {engine: [] for engine in engines}
    with tempfile.TemporaryDirectory(prefix="mlctl-batch-") as scratch:
        folder = Path(scratch)
        make_workload(model, folder / "model")
        write_rows(folder / "rows.parquet", rows, wide=options.wide)
        # Bytecode is kept, as that of installed packages is; the first round writes it.
        environment = {
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }
        sums: dict[str, float] = {}
        for index in range(1 + options.rounds):
            for engine in engines:
                command = command_of(engine, options.python, folder, batch, options.threads)
                cost = measure(command, environment)
                if index:
                    costs[engine].append(cost)
                found, sums[engine] = answered(folder / "out")
                if found != rows or not np.isclose(sums[engine], sums[engines[0]], rtol=1e-3):
                    raise SystemExit(f"{engine}: {found} rows, {sums}")
                out = folder / "out"
                shutil.rmtree(out) if out.is_dir() else out.unlink()
    return costs


def show(model: str, rows: int, costs: Mapping[str, Sequence[CommandCost]]) -> None:
    """Print the median of each engine by its CPU."""
    table = Table(title=f"{model}, {rows:,} rows", box=None, padding=(0, 2, 0, 0))
    for name in ("", "rows/s", "CPU-s per M rows", "peak MB"):
        table.add_column(name, justify="right" if name else "left")
    for engine, each in costs.items():
        cpu = median(cost.cpu_seconds for cost in each) / rows * 1e6
        rate = rows / median(cost.seconds for cost in each)
        memory = max(cost.mebibytes for cost in each)
        table.add_row(engine, f"{rate:,.0f}", f"{cpu:.2f}", f"{memory:,.0f}")
    Console(width=100).print(table)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the peers")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--wide", action="store_true", help="a column for each value")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for model in options.models:
        costs = run_model(model, options.engines, options)
        show(model, max(1, int(MODELS[model][0] * options.scale)), costs)
        found[model] = {engine: [asdict(cost) for cost in each] for engine, each in costs.items()}
    load = [round(value, 1) for value in os.getloadavg()]
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {load}, {options.threads} threads")
    if options.json is not None:
        options.json.write_text(dumps(found))


if __name__ == "__main__":
    main()
