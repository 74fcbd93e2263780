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


def pandas(work: Work) -> None:
    """The whole file as a frame; ONNX Runtime's own threads."""
    import pandas as pd

    frame = pd.read_parquet(work.rows)
    session = open_model(work.model, work.threads)
    columns = [name for name in frame.columns if name != "id"]
    parts = []
    for start in range(0, len(frame), 16_384):
        piece = frame.iloc[start : start + 16_384]
        x = piece[columns].to_numpy(np.float32) if work.wide else np.stack(piece["x"].to_list())
        parts.append(session.run(None, {"x": x})[0][:, 0])
    made = pd.DataFrame({"id": frame["id"], "y": np.concatenate(parts)})
    made.to_parquet(work.out, compression="zstd")


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


def duckdb(work: Work) -> None:
    """The model as a scalar function of Arrow arrays, and COPY."""
    import pyarrow as pa

    db: Any = importlib.import_module("duckdb")

    session = open_model(work.model, 1)

    def flat(*columns: Any) -> Any:
        arrays = [c.combine_chunks() if hasattr(c, "combine_chunks") else c for c in columns]
        if work.wide:
            x = np.stack([array.to_numpy() for array in arrays], axis=1)
        else:
            (array,) = arrays
            x = array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), -1)
        return pa.array(score(session, x, work.batch))

    connection = db.connect(config={"threads": work.threads})
    kinds = None if work.wide else ["FLOAT[64]"]
    connection.create_function("scored", flat, kinds, "FLOAT", type="arrow")
    columns = ", ".join(f"x_{index}" for index in range(64)) if work.wide else "x::FLOAT[64]"
    connection.execute(
        f"COPY (SELECT id, scored({columns}) AS y FROM read_parquet('{work.rows}')) "
        f"TO '{work.out}' (FORMAT parquet, COMPRESSION zstd)"
    )


def ray(work: Work) -> None:
    """Ray Data with a pool of actors."""
    import ray as cluster

    # One more than actors, or else nothing reads for them.
    options: Any = {
        "num_cpus": work.threads + 1,
        "include_dashboard": False,
        "log_to_driver": False,
    }
    cluster.init("local", **options)

    class Model:
        def __init__(self) -> None:
            self.session = open_model(work.model, 1)

        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            if work.wide:
                x = np.stack([batch[f"x_{index}"] for index in range(64)], axis=1)
            else:
                x = np.stack(list(batch["x"]))
            return {"id": batch["id"], "y": score(self.session, x, work.batch)}

    rows = cluster.data.read_parquet(str(work.rows))
    pool = cluster.data.ActorPoolStrategy(size=work.threads)
    scored = rows.map_batches(Model, compute=pool, batch_size=16_384, zero_copy_batch=True)
    scored.write_parquet(str(work.out), compression="zstd")
    cluster.shutdown()


ENGINES: dict[str, Callable[[Work], None]] = {
    "loop": loop,
    "pandas": pandas,
    "polars": polars,
    "duckdb": duckdb,
    "ray": ray,
}


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
