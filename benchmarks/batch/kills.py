"""Batch jobs that are killed (SIGKILL) at random moments: each row is answered once.

The rows are in nested folders with dates, and have 64 scalar columns and columns of many types.
Each job writes to a new place, is killed a few times, and is then compared row by row with the
input and with ONNX Runtime's answers. After its first kill it finds what other programs have put
into its output.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np
import onnxruntime
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from pyarrow import dataset, parquet

from benchmarks.result import BenchmarkResult
from benchmarks.workloads import make_workload
from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.verify import verify
from mlctl.core.errors import MlctlError
from mlctl.services.batch.job import BatchConfig, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from tests.support.batch_kill import Killer
from tests.support.postgres import PostgresServer
from tests.support.s3 import s3_client, s3_environment, s3_server

_WIDTH = 64
_UNIT_ROWS = 20_000
_THREADS = 2
# Of one job.
_MAX_KILLS = 6
# Of the time of a job without kills, so that most runs are killed.
_SHARE = 0.4
# One row in this many has a NaN, which --forbid-nan rejects.
_POISON = 10_007
_PLACES = [f"{land}/day=2026-05-{day:02}" for land in ("eu/north", "us") for day in range(1, 6)]
_KEEP = ("id", "country", "price", "seen_at", "tags", "day")


class KilledOutput(Protocol):
    """A kind of output; `source` is the input of its jobs, `variables` are their environment."""

    source: str
    variables: Mapping[str, str]
    partition_by: tuple[str, ...]

    def out(self, job: int) -> str:
        """Return the `--out` of a job by its number."""
        ...

    def answers(self, out: str) -> pa.Table:
        """Read the answers of a job."""
        ...

    def bad_ids(self, out: str) -> list[int]:
        """Read the ids in the quarantine of a job."""
        ...

    def disturb(self, out: str) -> None:
        """Put something of another program into the output of a job."""
        ...

    def is_untouched(self, out: str) -> bool:
        """Return whether that is still there, as it was."""
        ...


class FilesOutput:
    """Part files below `root`, a folder or a prefix of a bucket."""

    partition_by: tuple[str, ...] = ("day",)

    def __init__(self, source: str, root: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self.variables = variables
        self._root = root
        self._system: Any = fsspec.core.url_to_fs(root)[0]

    def out(self, job: int) -> str:
        return f"{self._root}/{job}"

    def answers(self, out: str) -> pa.Table:
        others = set(self._others(out))
        files = self._system.glob(f"{_path(out)}/day=*/part-*.parquet")
        return self._read([file for file in files if file not in others])

    def bad_ids(self, out: str) -> list[int]:
        found = self._read(self._system.glob(f"{_path(out)}/_mlctl/quarantine/part-*"))
        ids: list[int] = found["id"].to_pylist()
        return ids

    def disturb(self, out: str) -> None:
        for name in self._others(out):
            self._system.makedirs(name.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(name, name.encode())

    def is_untouched(self, out: str) -> bool:
        self._system.invalidate_cache()
        return all(self._system.cat_file(name) == name.encode() for name in self._others(out))

    def _read(self, files: list[str]) -> pa.Table:
        days = dataset.partitioning(pa.schema([("day", pa.string())]), flavor="hive")
        return dataset.dataset(files, filesystem=self._system, partitioning=days).to_table()

    def _others(self, out: str) -> list[str]:
        inside = ("part-0-spark.parquet", "day=2026-05-01/part-000000-ffffffffffff.parquet")
        names = (*inside, "sub/part-000001.parquet", "_mlctl/notes.json")
        return [f"{_path(out)}/{name}" for name in names]


class PostgresOutput:
    """A table of its own for each job."""

    partition_by: tuple[str, ...] = ()

    def __init__(self, source: str, url: str) -> None:
        self.source = source
        self.variables: Mapping[str, str] = {}
        self._url = url

    def out(self, job: int) -> str:
        return f"{self._url}&create=yes&table=scores{job}"

    def answers(self, out: str) -> pa.Table:
        names = ("price::text AS price" if name == "price" else name for name in (*_KEEP, "y"))
        return self._run(f"SELECT {', '.join(names)} FROM {_table(out)} WHERE id >= 0")

    def bad_ids(self, out: str) -> list[int]:
        found = self._run(f"SELECT content::json->>'id' AS id FROM {_table(out)}_mlctl_quarantine")
        return [int(each) for each in found["id"].to_pylist()]

    def disturb(self, out: str) -> None:
        self._run(f"INSERT INTO {_table(out)} (id, mlctl_unit) VALUES (-1, 'of others')")

    def is_untouched(self, out: str) -> bool:
        found = self._run(f"SELECT mlctl_unit FROM {_table(out)} WHERE id = -1")
        marks: list[str] = found["mlctl_unit"].to_pylist()
        return marks == ["of others"]

    def _run(self, sql: str) -> pa.Table:
        connection = dbapi.connect(self._url, autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table() if cursor.description else None


def _path(out: str) -> str:
    return out.removeprefix("s3://")


def _table(out: str) -> str:
    return out.rpartition("=")[2]


@contextmanager
def _folder(rows: Path) -> Iterator[KilledOutput]:
    yield FilesOutput(str(rows), str(rows.with_name("out")), {})


@contextmanager
def _s3(rows: Path) -> Iterator[KilledOutput]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it reports every request
    with s3_server() as address, s3_client(address):
        system = fsspec.filesystem("s3")
        system.makedirs("bucket")
        system.put(f"{rows}/", "bucket/rows/", recursive=True)
        yield FilesOutput("s3://bucket/rows", "s3://bucket/out", s3_environment(address))


@contextmanager
def _postgres(rows: Path) -> Iterator[KilledOutput]:
    server = PostgresServer()
    try:
        yield PostgresOutput(str(rows), server.url)
    finally:
        server.close()


OUTPUTS: Mapping[str, Callable[[Path], AbstractContextManager[KilledOutput]]] = {
    "folder": _folder,
    "S3 (moto)": _s3,
    "PostgreSQL": _postgres,
}


def write_rows(folder: Path, rows: int) -> pa.Table:
    """Write rows below `folder`; return the columns that jobs keep, and the features `x`."""
    random, found, first = np.random.default_rng(1), [], 0
    countries = pa.array(["DE", "AT", None, "CH"])
    for place in _PLACES:
        count = rows // len(_PLACES)
        ids = np.arange(first, first + count)
        x = random.normal(size=(count, _WIDTH)).astype(np.float32)
        x[ids % _POISON == 0, 0] = np.nan
        kept = {
            "id": pa.array(ids),
            "country": countries.take(pa.array(ids % 4)).dictionary_encode(),
            "price": pa.array(ids).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)),
            "seen_at": pa.array(ids * 1_000_003).cast(pa.timestamp("us", "UTC")),
            "tags": pa.ListArray.from_arrays(
                np.arange(count + 1, dtype=np.int32) * 2, np.repeat(ids, 2).astype(np.int32)
            ),
        }
        columns = {f"x_{index}": np.ascontiguousarray(x[:, index]) for index in range(_WIDTH)}
        table = pa.table({**kept, **columns})
        file = folder / place / "rows.parquet"
        file.parent.mkdir(parents=True)
        parquet.write_table(table, file, compression="zstd", row_group_size=_UNIT_ROWS // 2)
        features = pa.FixedSizeListArray.from_arrays(x.reshape(-1), _WIDTH)
        day = pa.repeat(place.rpartition("=")[2], count)
        found.append(pa.table({**kept, "day": day, "x": features}))
        first += count
    parquet.write_table(table.slice(0, 0), folder / _PLACES[0] / "without_rows.parquet")
    (folder / _PLACES[0] / "_SUCCESS").touch()
    return pa.concat_tables(found).unify_dictionaries()


def expected_answers(rows: pa.Table, model: Path) -> pa.Table:
    """Return the columns kept of the rows without NaN, and ONNX Runtime's `y`."""
    rows = rows.filter(pa.array(rows["id"].to_numpy() % _POISON != 0))
    runtime: Any = onnxruntime
    session, answers = runtime.InferenceSession(str(model)), []
    for start in range(0, rows.num_rows, _UNIT_ROWS):
        x = rows["x"].slice(start, _UNIT_ROWS).combine_chunks().flatten().to_numpy()
        answers.append(session.run(["y"], {"x": x.reshape(-1, _WIDTH)})[0].reshape(-1))
    return rows.drop_columns(["x"]).append_column("y", pa.array(np.concatenate(answers)))


def score(folder: Path, to: KilledOutput, out: str, *, stopped: bool = False) -> None:
    """Score the rows in this process: `mlctl batch run` without its terminal.

    A `stopped` run only begins the job.
    """
    config = BatchConfig(
        keep=_KEEP, partition_by=to.partition_by, unit_rows=_UNIT_ROWS, forbid_nan=True
    )
    os.environ.update(to.variables)
    source, bundle = open_source(to.source, _UNIT_ROWS), verify(folder / "bundle")
    control = RunControl()
    if stopped:
        control.stop.set()
    with suppress(MlctlError) if stopped else nullcontext():
        run_job(bundle, source, open_sink(out), config, local_executor(_THREADS), control)


def differences(found: pa.Table, expected: pa.Table) -> tuple[int, int, int]:
    """Return how many rows are lost, how many too many, and how many have another value."""
    found = found.select(expected.schema.names).cast(expected.schema).sort_by("id")
    ids, expected_ids = found["id"].to_numpy(), expected["id"].to_numpy()
    lost = len(np.setdiff1d(expected_ids, ids))
    if lost or len(ids) != len(expected_ids):
        return lost, len(ids) - len(expected_ids) + lost, 0
    wrong = set[int]()
    for name in expected.schema.names:
        if found[name] != expected[name]:
            pairs = zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True)
            wrong |= {row for row, (one, other) in enumerate(pairs) if one != other}
    return 0, 0, len(wrong)


def kill_jobs(
    to: KilledOutput, kills: int, seed: int, folder: Path, expected: pa.Table
) -> tuple[float, Counter[str]]:
    """Kill jobs until there were `kills`; return the seconds of a job without, and the counts."""
    counts, killer = Counter[str](), Killer(seed, __name__)
    poisoned = list(range(0, expected.num_rows, _POISON))
    longest = 0.0
    while killer.kills < kills:
        out = to.out(counts["jobs"])
        job = partial(score, to=to, out=out)
        if not longest:
            longest = killer.undisturbed(job, folder)
        else:
            started = time.monotonic()
            if killer.harass_once(job, folder, longest):
                longest = time.monotonic() - started  # the machine has become faster
            score(folder, to, out, stopped=True)
            to.disturb(out)
            killer.harass(job, folder, _SHARE * longest, _MAX_KILLS)
            counts["foreign entries changed"] += not to.is_untouched(out)
        answers = to.answers(out)
        lost, repeated, wrong = differences(answers, expected)
        counts += Counter(jobs=1, answers=answers.num_rows, lost=lost, twice=repeated, wrong=wrong)
        counts["bad rows wrong"] += sorted(to.bad_ids(out)) != poisoned
    counts["kills"] = killer.kills
    return longest, counts


def measure(kills: int, rows: int, seed: int, folder: Path, result: BenchmarkResult) -> None:
    """Add the table of at least `kills` kills of jobs with `rows` rows, for each output."""
    make_workload("light", folder / "bundle")
    written = write_rows(folder / "rows", rows)
    expected = expected_answers(written, folder / "bundle" / MODEL_NAME)
    counted = ("kills", "jobs", "answers", "lost", "twice", "wrong", "bad rows wrong")
    table = result.table(
        f"batch jobs of {written.num_rows:,} rows, at least {kills} kills of each output",
        *("output", *counted, "foreign entries changed", "a job without kills s", "seconds"),
    )
    for name, opened in OUTPUTS.items():
        began = time.monotonic()
        with opened(folder / "rows") as to:
            longest, counts = kill_jobs(to, kills, seed, folder, expected)
        cells = (counts[each] for each in (*counted, "foreign entries changed"))
        table.add(name, *cells, longest, time.monotonic() - began)
