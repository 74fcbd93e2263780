"""Tables for batch tests: the tiny bundle's inputs with an id, as Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from mlctl.services.batch.job import BatchConfig, BatchReport, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import BatchEvent, ErrorLimit, RunControl
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Sink
from mlctl.services.layout.scorable import Scorable

FEATURES = 4


def inputs(rows: int, seed: int = 0) -> np.ndarray:
    """The rows of `x` [rows, 4]."""
    return np.random.default_rng(seed).normal(size=(rows, FEATURES)).astype(np.float32)


def table(x: np.ndarray, first: int = 0) -> pa.Table:
    """Columns id and x (a list of fixed size)."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    return pa.table({"id": np.arange(first, first + len(x)), "x": column})


def write_rows(path: Path, rows: int, *, first: int = 0, group: int = 1000) -> np.ndarray:
    """A Parquet file of random rows with ids from `first`; returns their `x`."""
    x = inputs(rows, seed=first)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table(x, first), path, row_group_size=group)
    return x


def answers(out: Path) -> pa.Table:
    """Return the rows of a folder's Parquet parts by id."""
    parts = sorted(out.glob("part-*.parquet"))
    return pa.concat_tables([parquet.read_table(part) for part in parts]).sort_by("id")


def quarantine(out: Path) -> list[dict[str, object]]:
    """Return the rows in quarantine of a folder, by file and row."""
    parts = sorted((out / "_mlctl" / "quarantine").glob("part-*.parquet"))
    rows: list[dict[str, object]] = [r for p in parts for r in parquet.read_table(p).to_pylist()]
    return sorted(rows, key=lambda row: (str(row["mlctl_file"]), int(str(row["mlctl_row"]))))


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of lists as an array."""
    return np.array(column.to_pylist(), np.float32)


def score(
    model: Scorable,
    source: Path | str,
    sink: Sink,
    *,
    limit: str = "1%",
    threads: int = 2,
    restart: bool = False,
    control: RunControl | None = None,
    events: list[BatchEvent] | None = None,
    config: BatchConfig | None = None,
) -> BatchReport:
    """Run a job over the rows at `source`, keeping `id` unless `config` says otherwise."""
    config = config or BatchConfig(keep=("id",), unit_rows=500)
    control = control or RunControl(
        limit=ErrorLimit.parse(limit),
        watch=(events if events is not None else []).append,
        restart=restart,
    )
    rows = open_source(str(source), config.unit_rows)
    return run_job(model, rows, sink, config, local_executor(threads), control)
