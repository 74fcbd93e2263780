"""SIGKILL at random moments: each row is answered once, the quarantine is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import onnxruntime
import psycopg
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.bundle.verify import verify
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sinks import open_sink
from tests.support import tables
from tests.support.batch_kill import Job, Killer
from tests.support.bundles import make_bundle
from tests.support.postgres import PostgresServer
from tests.support.s3 import s3_client, s3_server
from tests.support.transforms import make_text_bundle
from tests.support.wait import PATIENCE_SECONDS

ROWS = 2_500
UNIT = 100
POISONED = frozenset(np.random.default_rng(7).choice(ROWS, 37, replace=False).tolist())
KILLS = 30


def write_input(folder: Path) -> None:
    """Texts for the token model; the transform raises for one without words."""
    make_text_bundle(folder / "bundle")
    texts = ["" if row in POISONED else "one two" for row in range(ROWS)]
    rows = pa.table({"id": range(ROWS), "text": texts})
    parquet.write_table(rows, folder / "in.parquet", row_group_size=UNIT)


def run_texts(folder: Path) -> None:
    """Score the texts into the output that is named in a file of the folder."""
    tables.score(
        verify(folder / "bundle"),
        folder / "in.parquet",
        open_sink((folder / "target").read_text()),
        config=BatchConfig(keep=("id",), unit_rows=UNIT),
        limit=str(len(POISONED)),
    )


def write_numbers(folder: Path) -> None:
    """Rows of the tiny model, with NaN in the poisoned ones, in two partitions."""
    make_bundle(folder / "bundle")
    x = tables.inputs(ROWS)
    x[sorted(POISONED)] = np.nan
    for land in range(2):
        path = folder / "in" / f"land={land}" / "a.parquet"
        path.parent.mkdir(parents=True)
        half = slice(land * ROWS // 2, (land + 1) * ROWS // 2)
        parquet.write_table(tables.table(x[half], half.start), path, row_group_size=UNIT)


def run_numbers(folder: Path) -> None:
    """Score the numbers into partitions of the output that is named in a file of the folder."""
    config = BatchConfig(keep=("id", "x"), partition_by=("land",), unit_rows=UNIT, forbid_nan=True)
    sink = open_sink((folder / "target").read_text())
    bundle = verify(folder / "bundle")
    tables.score(bundle, folder / "in", sink, config=config, limit=str(len(POISONED)))


def run_in_s3(folder: Path) -> None:
    """Score the numbers into a bucket; the server's address is in a file of the folder."""
    with s3_client((folder / "address").read_text()):
        run_numbers(folder)


def read_tables(system: Any, names: list[str]) -> list[pa.Table]:
    """Read files of a folder or bucket, all at once."""
    return [parquet.read_table(pa.BufferReader(each)) for each in system.cat(names).values()]


def check_numbers(folder: Path) -> None:
    """Check that the output has each row once, with the answers of ONNX Runtime."""
    target = (folder / "target").read_text()
    system, root = fsspec.core.url_to_fs(target)
    system.invalidate_cache()
    names = [name for name in system.find(root) if "part-" in name]
    bad_names = [name for name in names if "_mlctl/quarantine" in name]
    answer_names = [
        name for name in names if name not in bad_names and name.rpartition("/")[2] not in FOREIGN
    ]
    found = pa.concat_tables(read_tables(system, answer_names)).sort_by("id")
    assert found["id"].to_pylist() == sorted(set(range(ROWS)) - POISONED)
    runtime: Any = onnxruntime
    session = runtime.InferenceSession(str(folder / "bundle" / "model.onnx"))
    (expected,) = session.run(["y"], {"x": tables.matrix(found["x"])})
    np.testing.assert_array_equal(tables.matrix(found["y"]), expected)
    bad = [row for table in read_tables(system, bad_names) for row in table.to_pylist()]
    assert sorted(row["id"] for row in bad) == sorted(POISONED)
    assert all("NaN" in row["mlctl_reason"] for row in bad)
    assert system.exists(f"{root}/_SUCCESS")


# Files of other programs in and below the output.
FOREIGN = ("part-00000-spark.parquet", "part-000000-ffffffffffff.parquet")


def put_foreign(target: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(target)
    found = {}
    for name in (FOREIGN[0], f"sub/{FOREIGN[1]}", f"land=0/{FOREIGN[1]}", "_mlctl/notes.json"):
        if not target.startswith("s3:"):
            system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        system.pipe_file(f"{root}/{name}", name.encode())
        found[f"{root}/{name}"] = name.encode()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("store", ["folder", "s3"])
def test_batch__killed_at_random_moments__each_row_is_answered_once(
    tmp_path: Path, store: str
) -> None:
    with s3_server() as address, s3_client(address):
        fsspec.filesystem("s3").makedirs("bucket", exist_ok=True)
        killer, jobs, longest = Killer(20_000, __name__), 0, PATIENCE_SECONDS
        while killer.kills < KILLS or jobs < 3:
            folder = tmp_path / f"job{jobs}"
            write_numbers(folder)
            target = f"s3://bucket/job{jobs}/out" if store == "s3" else str(folder / "out")
            (folder / "target").write_text(target)
            (folder / "address").write_text(address)
            run = run_in_s3 if store == "s3" else run_numbers
            if jobs == 0:
                longest = killer.undisturbed(run, folder)
                check_numbers(folder)
            else:
                kill_with_others_files(killer, run, folder, 0.5 * longest)
            jobs += 1


def kill_with_others_files(killer: Killer, run: Job, folder: Path, longest: float) -> None:
    """Kill a job until it completes; files of others that come after its start stay as they are."""
    target = (folder / "target").read_text()
    system, root = fsspec.core.url_to_fs(target)
    foreign: dict[str, bytes] = {}
    for _ in range(10):
        if killer.harass_once(run, folder, longest):
            break
        system.invalidate_cache()
        if not foreign and system.exists(f"{root}/_mlctl/job.json"):
            foreign = put_foreign(target)
    else:
        killer.undisturbed(run, folder)
    check_numbers(folder)
    assert {name: system.cat_file(name) for name in foreign} == foreign


def check_table(url: str, table: str) -> None:
    with psycopg.connect(url) as connection:
        ids = [row[0] for row in connection.execute(f"SELECT id FROM {table}")]
        held = connection.execute(
            f"SELECT row, (content::json->>'id')::int, reason "
            f"FROM {table}_mlctl_quarantine ORDER BY 1"
        ).fetchall()
        done = connection.execute(
            f"SELECT 1 FROM {table}_mlctl_job WHERE name = 'summary'"
        ).fetchall()
    assert len(ids) == len(set(ids)), "a row was answered twice"
    assert set(ids) == set(range(ROWS)) - POISONED, "a row was lost"
    assert [row for row, _id, _reason in held] == sorted(POISONED)
    assert all(row == number and "no words" in reason for row, number, reason in held)
    assert done == [(1,)]


@pytest.mark.slow
def test_batch__killed_while_it_writes_a_table__each_row_is_answered_once(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        killer, jobs, longest = Killer(30_000, __name__), 0, PATIENCE_SECONDS
        while killer.kills < KILLS or jobs < 3:
            folder, table = tmp_path / f"job{jobs}", f"scores{jobs}"
            write_input(folder)
            # Without a key: a unit that came twice would be seen.
            (folder / "target").write_text(f"{server.url}&table={table}&create=yes")
            if jobs == 0:
                longest = killer.undisturbed(run_texts, folder)
            else:
                killer.harass(run_texts, folder, 0.4 * longest, most=7)
            check_table(server.url, table)
            jobs += 1
    finally:
        server.close()
