"""Units in a folder: each its own commit, and no file of others is touched."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.progress import RunControl
from mlctl.services.batch.sinks import open_sink
from tests.support import tables
from tests.support.bundles import make_bundle


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("part-*")}


def test_folder__same_job_elsewhere__writes_the_same_names_and_bytes(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3000)
    for name, threads in (("one", 1), ("two", 4)):
        sink = open_sink(str(tmp_path / name))
        tables.score(bundle, tmp_path / "in.parquet", sink, threads=threads)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_folder__unit_without_marker__is_scored_again(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3000)
    out = tmp_path / "out"
    tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)))
    before = contents(out)
    cut_off, missing = sorted((out / "_mlctl").glob("00000*.json"))[:2]
    cut_off.write_text('{"unit": "0000')
    missing.unlink()
    (out / "_SUCCESS").unlink()
    report = tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)))
    assert (report.rows, report.totals.rows) == (2000, 3000)
    assert contents(out) == before


def test_folder__two_runs_at_once__each_row_is_answered_once(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 20_000, group=500)
    begin = threading.Barrier(2)

    def run(_number: int) -> int:
        sink = open_sink(str(tmp_path / "out"))
        begin.wait()
        return tables.score(bundle, tmp_path / "in.parquet", sink).totals.rows

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [20_000, 20_000]
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(20_000))


def test_folder__restart__deletes_what_the_job_wrote_and_nothing_else(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tables.write_rows(tmp_path / "in.parquet", 1000)
    by_id = BatchConfig(keep=("id", "land"), partition_by=("land",))
    source = tmp_path / "rows"
    for land in ("DE", "AT"):
        tables.write_rows(source / f"land={land}" / "a.parquet", 100)
    tables.score(bundle, source, open_sink(str(out)), config=by_id)
    # The same job below it, a job of another model, and a file of Spark.
    tables.score(bundle, source, open_sink(str(out / "again")), config=by_id)
    other = make_bundle(tmp_path / "other", scale=3.0)
    tables.score(other, tmp_path / "in.parquet", open_sink(str(out / "other")))
    (out / "part-00000-5f0c9a1e.snappy.parquet").write_text("spark")
    (out / "notes.txt").write_text("mine")
    written = {name for name in contents(out) if name.startswith("land=")}
    left = {name: data for name, data in contents(out).items() if name not in written}
    assert len(written) == 2
    config = BatchConfig(keep=("id",))
    tables.score(other, source, open_sink(str(out)), config=config, restart=True)
    found = contents(out)
    assert not written & found.keys()
    assert {name: found[name] for name in left} == left
    assert (out / "notes.txt").read_text() == "mine"


def test_folder__restart_cut_off_behind_the_markers__parts_are_replaced(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 2000)
    out = tmp_path / "out"
    tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)))
    for marker in (out / "_mlctl").glob("00000*.json"):
        marker.unlink()
    tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)), restart=True)
    assert tables.answers(out)["id"].to_pylist() == list(range(2000))


def test_folder__files_before_the_first_job__are_rejected(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 10)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-0.parquet").write_text("spark")
    for restart in (False, True):
        sink = open_sink(str(tmp_path / "out"))
        with pytest.raises(MlctlError, match="files of no batch job, such as") as caught:
            tables.score(bundle, tmp_path / "in.parquet", sink, restart=restart)
        assert caught.value.code is ErrorCode.JOB_CHANGED
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["part-0.parquet"]
    with pytest.raises(MlctlError, match="is not a folder"):
        open_sink(str(tmp_path / "in.parquet"))


def test_folder__another_job_took_the_output_meanwhile__finish_fails(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1000)
    out = tmp_path / "out"
    tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)))
    record = out / "_mlctl" / "job.json"
    other = record.read_text().replace(bundle.digest, "f" * 64)
    (out / "_SUCCESS").unlink()
    events: list[object] = []

    def steal(_event: object) -> None:
        events.append(_event)
        record.write_text(other)

    with pytest.raises(MlctlError, match="belongs to another job"):
        tables.score(
            bundle, tmp_path / "in.parquet", open_sink(str(out)), control=RunControl(watch=steal)
        )
    assert not (out / "_SUCCESS").exists()


def test_folder__temporary_files_of_a_killed_run__removed_when_the_job_completes(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1000)
    out = tmp_path / "out"
    tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)))
    (part,) = out.glob("part-*")
    folder = out / "_mlctl" / "incomplete"
    (folder / f"{part.name}.abc").write_text("half")
    (folder / "part-000000-ffffffffffff.parquet.abc").write_text("of another job")
    # The run was killed again after the unit's marker was written.
    (out / "_SUCCESS").unlink()
    tables.score(bundle, tmp_path / "in.parquet", open_sink(str(out)))
    assert [path.name for path in folder.iterdir()] == ["part-000000-ffffffffffff.parquet.abc"]
