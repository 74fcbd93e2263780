"""The commit protocol of a folder: orphans, locks, strangers."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.files import NO_SPACE
from services.batch.base import BadRow, BatchTotals, Job, SinkRequest, Unit, UnitResult
from services.batch.folder import FolderSink
from services.batch.ledger import Ledger
from services.batch.sinks.parquet import open_sink
from tests.support import tables

SCHEMA = pa.schema([("id", pa.int64())])
JOB = Job({"input": "a"}, SCHEMA, SCHEMA, {"bento": "b"})


def sink_at(out: Path) -> FolderSink:
    return open_sink(SinkRequest(str(out)))


def result(index: int, bad: tuple[BadRow, ...] = ()) -> UnitResult:
    first = index * 10
    return UnitResult(
        Unit(f"{index:08}", "f", first, 10),
        pa.table({"id": pa.array(range(first, first + 10 - len(bad)), pa.int64())}),
        bad,
    )


def files_below(folder: Path) -> set[str]:
    """The files that are no state of a sink, by their paths."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "_mlctl" not in path.parts}


def test_folder__commit_cut_off_before_the_ledger__parts_removed_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, partition_by=("kind",))

    def part(index: int) -> UnitResult:
        table = result(index).table.append_column("kind", pa.array([0, 1] * 5))
        return replace(result(index), table=table)

    def die(_self: object, _results: object, _parts: object) -> None:
        raise KeyboardInterrupt

    with sink_at(tmp_path) as sink:
        sink.begin(job)
        sink.commit([part(0)])
        committed = files_below(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("services.batch.ledger.Ledger.commit", die)
            with pytest.raises(KeyboardInterrupt):
                sink.commit([part(1)])
    assert len(files_below(tmp_path)) == 4
    (tmp_path / "_mlctl" / "x.tmp").write_bytes(b"half")
    with sink_at(tmp_path) as sink:
        progress = sink.begin(job)
        assert files_below(tmp_path) == committed
        assert progress.done == {"00000000"}
        assert progress.totals == BatchTotals(units=1, rows=10)
        assert not list((tmp_path / "_mlctl").glob("*.tmp"))
        sink.commit([part(1)])
    assert len(files_below(tmp_path)) == 4


def finish_job(folder: Path) -> set[str]:
    with sink_at(folder) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
        sink.finish({"rows": 10})
    return files_below(folder)


def test_folder__job_in_a_subfolder__start_restart_and_redrive_keep_its_parts(
    tmp_path: Path,
) -> None:
    outer, inner = tmp_path / "c", tmp_path / "c" / "d"
    finish_job(outer)
    kept = finish_job(inner)
    with sink_at(outer) as sink:
        assert sink.begin(JOB).finished
    with sink_at(outer) as sink:
        sink.stored()  # as a redrive does
    assert files_below(inner) == kept
    with sink_at(outer) as sink:
        assert not sink.begin(JOB, restart=True).finished
    assert files_below(outer) == {f"d/{name}" for name in kept}
    with sink_at(inner) as sink:
        assert sink.begin(JOB).finished


@pytest.mark.parametrize("restart", [False, True])
def test_folder__part_files_of_other_programs__never_removed_or_replaced(
    tmp_path: Path, *, restart: bool
) -> None:
    finish_job(tmp_path)
    foreign = {
        "part-00000000.parquet",  # the name of a unit, without the job's id
        "part-00000-2b5c8a11-c000.snappy.parquet",  # Spark
        "part.0.parquet",  # Dask
        "day=1/part-00000-2b5c8a11-c000.snappy.parquet",
    }
    (tmp_path / "day=1").mkdir()
    for name in foreign:
        (tmp_path / name).write_bytes(b"precious")
    with sink_at(tmp_path) as sink:
        sink.begin(JOB, restart=restart)
        sink.commit([result(1)])
        sink.stored()
    assert foreign <= files_below(tmp_path)
    assert all((tmp_path / name).read_bytes() == b"precious" for name in foreign)


def test_folder__copied_below_itself__copy_is_kept(tmp_path: Path) -> None:
    finish_job(tmp_path / "c")
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "c" / "copy")
    before = files_below(tmp_path / "c" / "copy")
    with sink_at(tmp_path / "c") as sink:
        sink.begin(JOB, restart=True)
    assert files_below(tmp_path / "c" / "copy") == before


def test_folder__restart_killed_before_its_parts_are_gone__next_start_scores_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_job(tmp_path)
    with sink_at(tmp_path) as sink, monkeypatch.context() as patch:

        def die(_path: Path, **_options: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            sink.begin(JOB, restart=True)
    with sink_at(tmp_path) as sink:
        progress = sink.begin(JOB)
        assert not progress.finished
        assert not progress.done
    assert files_below(tmp_path) == set()


def test_a_commit_may_be_made_again(tmp_path: Path) -> None:
    bad = (BadRow(9, "poison", {"id": 9}),)
    with sink_at(tmp_path) as sink:
        sink.begin(JOB)
        for _ in range(2):
            sink.commit([result(0, bad), result(1)])
        assert [each.bad.row for each in sink.quarantined()] == [9]
        (_job, progress) = sink.stored()
    assert progress.totals == BatchTotals(units=2, rows=19, bad=1)
    assert tables.answers(tmp_path)["id"].to_pylist() == [*range(9), *range(10, 20)]


def test_one_runner_at_a_time(tmp_path: Path) -> None:
    with sink_at(tmp_path), pytest.raises(MlctlError, match="another process") as caught:
        sink_at(tmp_path).__enter__()
    assert caught.value.code is ErrorCode.JOB_RUNNING
    with sink_at(tmp_path) as sink:
        assert not sink.begin(JOB).done


def test_a_folder_of_somebody_else_is_refused_even_with_restart(tmp_path: Path) -> None:
    mine = tmp_path / "part-00000000.parquet"
    mine.write_bytes(b"precious")
    for restart in (False, True):
        with sink_at(tmp_path) as sink, pytest.raises(MlctlError, match="no batch job wrote"):
            sink.begin(JOB, restart=restart)
    assert mine.read_bytes() == b"precious"


def test_restart_removes_the_answers_of_the_job_before_and_nothing_else(tmp_path: Path) -> None:
    with sink_at(tmp_path) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
        sink.finish({"rows": 10})
    (tmp_path / "notes.txt").write_text("keep me")
    other = Job({"input": "b"}, SCHEMA, SCHEMA)
    with sink_at(tmp_path) as sink:
        with pytest.raises(MlctlError, match="input was a, is b"):
            sink.begin(other)
        assert sink.begin(other, restart=True).totals == BatchTotals()
    assert not list(tmp_path.glob("part-*"))
    assert (tmp_path / "notes.txt").read_text() == "keep me"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(MlctlError, match="is not a folder"):
        sink_at(tmp_path / "out").__enter__()


def test_the_ledger_is_written_after_the_parts_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        order.append(
            "sync " + ("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        )
        real_sync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        order.append("rename")
        return real_replace(path, target)

    with sink_at(tmp_path) as sink:
        sink.begin(JOB)
        commit = sink._open().commit

        def enter(results: Sequence[UnitResult], parts: Iterable[str]) -> None:
            order.append("ledger")
            commit(results, parts)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(sink._open(), "commit", enter)
        sink.commit([result(0)])
    assert order == ["sync file", "rename", "sync folder", "ledger"]


@pytest.mark.parametrize("limit", [0, 40_000])  # of the part, of the ledger
def test_folder__limit_of_a_files_size__is_a_full_disk_and_the_commit_may_be_retried(
    tmp_path: Path, limit: int
) -> None:
    bad = tuple(BadRow(row, "poison", {"text": "x" * 5000}) for row in range(9))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with sink_at(tmp_path) as sink:
        sink.begin(JOB)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match=r"no space left|too large") as caught:
                sink.commit([result(0, bad)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caught.value.errno in NO_SPACE
        sink.commit([result(0, bad)])
        assert sink.stored()[1].totals == BatchTotals(units=1, rows=1, bad=9)


def test_ledger__open_after_a_commit__has_no_shared_memory(tmp_path: Path) -> None:
    with sink_at(tmp_path) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
        assert {path.name for path in (tmp_path / "_mlctl").iterdir()} == {"lock", "ledger.db"}
        with Ledger(tmp_path / "_mlctl" / "ledger.db") as other:  # as --format looks it up
            assert other.stored() == sink.stored()[0]


def test_a_full_ledger_is_a_full_disk_and_may_be_tried_again(tmp_path: Path) -> None:
    bad = tuple(BadRow(row, "poison", {"text": "x" * 500}) for row in range(10))
    with sink_at(tmp_path) as sink:
        sink.begin(JOB)
        database = sink._open()._db
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match="no space left") as caught:
            sink.commit([result(0, bad)])
        assert caught.value.errno == errno.ENOSPC
        assert str(caught.value.filename).startswith(str(tmp_path))
        assert sink.stored()[1].totals == BatchTotals()
        database.execute("PRAGMA max_page_count = 100000")
        sink.commit([result(0, bad)])
        assert sink.stored()[1].totals == BatchTotals(units=1, bad=10)
