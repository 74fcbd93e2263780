"""SIGKILL while a generation is written: the one before is served, and the same job goes on."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from mlctl.bundle.verify import verify
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.precomputed_sink import PrecomputedSink
from mlctl.services.batch.progress import BatchEvent, RunControl
from mlctl.services.precomputed.store_urls import open_store
from tests.support import tables
from tests.support.bundles import make_bundle
from tests.support.wait import PATIENCE_SECONDS, wait_until

NAME, ROWS, UNIT = "answers", 2_000, 20


def run_job(folder: Path, control: RunControl | None = None) -> None:
    sink = PrecomputedSink(NAME, open_store(NAME, str(folder / "store")))
    config = BatchConfig(keep=("id",), unit_rows=UNIT)
    bundle = verify(folder / "bundle")
    tables.score(bundle, folder / "in.parquet", sink, config=config, control=control)


def run_job_without_end(folder: Path) -> None:
    """Stop before the last units: on a busy machine the job could end before it is killed."""

    def stop(event: BatchEvent) -> None:
        if event.totals.seen >= ROWS - 5 * UNIT:
            time.sleep(PATIENCE_SECONDS)

    run_job(folder, RunControl(watch=stop))


@pytest.mark.slow
def test_precomputed__job_is_killed__old_answers_stay_live(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    tables.write_rows(tmp_path / "in.parquet", 10)
    run_job(tmp_path)
    tables.write_rows(tmp_path / "in.parquet", ROWS, first=5, group=UNIT)
    store = open_store(NAME, str(tmp_path / "store"))
    reader = store.reader(bundle.digest, 1.0)

    def written() -> int:
        return sum(each.rows for each in store.generations() if not each.live)

    context = multiprocessing.get_context("forkserver")
    for rows in (1, 200, 1_000):
        process = context.Process(target=run_job_without_end, args=(tmp_path,))
        process.start()
        wait_until(lambda most=rows: written() >= most, what="a part of it is written")  # type: ignore[misc]
        process.kill()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == -9, "it ended before it was killed"
        assert rows <= written() < ROWS
        assert [each.rows for each in store.generations() if each.live] == [10]
        assert [row is None for row in reader.get(["0", "5", "12"])] == [False, False, True]
    run_job(tmp_path)
    assert [(each.rows, each.live) for each in store.generations()] == [(10, False), (ROWS, True)]
    assert [row is None for row in reader.get(["0", "5", "12"])] == [True, False, False]
    reader.close()
    store.close()
