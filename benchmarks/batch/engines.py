"""Other engines to score a Parquet file, each as its users would write it.

Run by path, with the Python of whatever environment has the package: it imports nothing of
mlctl. `python engines.py ENGINE --model M --rows FILE --out PATH --threads N --batch ROWS`. Each
reads `id` and `x` (or x_0, x_1, ...), and writes `id` and `y` as Parquet with Zstandard.
"""

from __future__ import annotations

import argparse
import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done, and how; `wide` rows have a column for each value."""

    model: Path
    rows: Path
    out: Path
    threads: int
    batch: int
    wide: bool


def open_model(path: Path, threads: int) -> Any:
    import onnxruntime

    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def score(session: Any, x: np.ndarray, batch: int) -> np.ndarray:
    """One answer for each row of `x`, in calls of `batch` rows."""
    parts = [
        session.run(None, {"x": x[start : start + batch]})[0] for start in range(0, len(x), batch)
    ]
    return np.concatenate(parts)[:, 0]


def matrix(table: Any) -> np.ndarray:
    """The inputs of an Arrow table or record batch, [rows, 64]."""
    names = table.schema.names
    if "x" not in names:
        part = table.select([name for name in names if name.startswith("x_")])
        batch = part if hasattr(part, "to_tensor") else part.combine_chunks().to_batches()[0]
        wide: np.ndarray = batch.to_tensor(row_major=True).to_numpy()
        return wide
    column = table.column("x")
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    flat: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1)


def loop(work: Work) -> None:
    """The limit: threads, each reads row groups, scores them and writes its own file."""
    import pyarrow as pa
    from pyarrow import parquet

    session = open_model(work.model, 1)
    with parquet.ParquetFile(work.rows) as opened:
        groups = iter(range(opened.num_row_groups))
    lock = threading.Lock()
    schema = pa.schema([("id", pa.int64()), ("y", pa.float32())])
    work.out.mkdir()

    def run(number: int) -> None:
        with (
            parquet.ParquetFile(work.rows, pre_buffer=False) as file,
            parquet.ParquetWriter(
                work.out / f"{number}.parquet", schema, compression="zstd"
            ) as writer,
        ):
            while True:
                with lock:
                    group = next(groups, None)
                if group is None:
                    return
                table = file.read_row_group(group, use_threads=False)
                y = score(session, matrix(table), work.batch)
                writer.write_table(pa.table([table["id"], pa.array(y)], schema=schema))

    workers = [threading.Thread(target=run, args=(number,)) for number in range(work.threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def polars(work: Work) -> None:
    """A lazy scan, with the model as a streamable function of batches."""
    pl: Any = importlib.import_module("polars")

    session = open_model(work.model, 1)

    def run(frame: Any) -> Any:
        if work.wide:
            x = frame.select(pl.exclude("id")).to_numpy(order="c")
        else:
            x = frame["x"].to_numpy()
        y = score(session, np.ascontiguousarray(x, np.float32), work.batch)
        return pl.DataFrame({"id": frame["id"], "y": y})

    scan = pl.scan_parquet(work.rows)
    made = scan.map_batches(run, streamable=True, schema={"id": pl.Int64, "y": pl.Float32})
    made.sink_parquet(work.out, compression="zstd")


ENGINES: dict[str, Callable[[Work], None]] = {"loop": loop, "polars": polars}


def main() -> None:
    parser = argparse.ArgumentParser(prog="engines.py", description=__doc__)
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--wide", action="store_true")
    for name in ("model", "rows", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("threads", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = vars(parser.parse_args())
    ENGINES[options.pop("engine")](Work(**options))


if __name__ == "__main__":
    main()
