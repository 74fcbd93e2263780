"""Tables for batch tests: the tiny bundle's inputs with an id, as Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bundle.verify import VerifiedBundle
from services.batch.base import Sink, SourceRequest
from services.batch.engine import BatchEvent
from services.batch.job import BatchConfig, BatchReport, RunControl, local_executor, run_job
from services.batch.limits import ErrorLimit
from services.batch.sources import open_source
from services.runtime.scorable import Scorable

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
    """What a folder of Parquet parts holds, by id."""
    parts = sorted(out.glob("part-*.parquet"))
    return pa.concat_tables([parquet.read_table(part) for part in parts]).sort_by("id")


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    """A column of lists as an array."""
    return np.array(column.to_pylist(), np.float32)


def reference(model: Scorable) -> str:
    """How a job finds the model again: a bundle's folder; a pipeline of no Bento has none."""
    return str(model.root) if isinstance(model, VerifiedBundle) else model.digest


def score(
    model: Scorable,
    place: Path,
    sink: Sink,
    *,
    limit: str = "1%",
    threads: int = 2,
    restart: bool = False,
    control: RunControl | None = None,
    events: list[BatchEvent] | None = None,
    wanted: BatchConfig | None = None,
) -> BatchReport:
    """Run a job over the rows at `place`, with `id` kept unless `wanted` says otherwise."""
    wanted = wanted or BatchConfig(keep=("id",), unit_rows=500)
    control = control or RunControl(
        limit=ErrorLimit.parse(limit),
        watch=(events if events is not None else []).append,
        restart=restart,
    )
    source = open_source(SourceRequest(str(place), wanted.unit_rows))
    executor = local_executor(threads)
    return run_job(model, reference(model), source, sink, wanted, executor, control)
