"""Batch jobs into a shared store: two machines at once, dead jobs, and a Redis that loses data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig, BatchReport
from mlctl.services.batch.progress import BatchEvent, BatchPhase, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.precomputed.store_urls import open_store
from tests.services.precomputed.conftest import NAME, Bench
from tests.services.precomputed.servers import RedisServer, redis_server
from tests.support import tables

pytestmark = pytest.mark.slow

UNIT, UNITS = 20, 6
ROWS = UNIT * UNITS


class JobStoppedError(Exception):
    """Ends a job after a commit."""


class Jobs:
    """Runs batch jobs of several machines into the store at `place`."""

    def __init__(self, bench: Bench, folder: Path, place: str) -> None:
        self.bench = bench
        self.folder = folder
        self.place = place
        self.store = open_store(NAME, place)

    def rows(self, name: str, first: int = 0) -> Path:
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            tables.write_rows(path, ROWS, first=first, group=UNIT)
        return path

    def run(
        self,
        machine: str,
        rows: Path,
        after: Callable[[int], None] = lambda _units: None,
        *,
        restart: bool = False,
        **options: str,
    ) -> BatchReport:
        """Run the job over `rows` on `machine`; call `after` after each unit's commit."""

        def watch(event: BatchEvent) -> None:
            if event.phase is BatchPhase.COMMITTED:
                after(event.totals.units)

        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("MLCTL_HOME", str(self.folder / machine))
            environment.setenv("MLCTL_PRECOMPUTED_STORE", self.place)
            sink = open_sink(f"precomputed://{NAME}", options=options)
        control = RunControl(watch=watch, restart=restart)
        config = BatchConfig(keep=("id",), unit_rows=UNIT)
        return tables.score(
            self.bench.bundle, rows, sink, threads=1, control=control, config=config
        )

    def interrupt(self, machine: str, rows: Path, units: int) -> None:
        """Run the job on `machine` until `units` units are committed."""

        def stop(committed: int) -> None:
            if committed == units:
                raise JobStoppedError

        with pytest.raises(JobStoppedError):
            self.run(machine, rows, after=stop)

    def live(self) -> set[str]:
        """The keys of 0 ... ROWS + 100 that readers find."""
        reader = self.store.reader(self.bench.bundle.digest, 30.0)
        keys = [str(key) for key in range(ROWS + 100)]
        found = {key for key, row in zip(keys, reader.get(keys), strict=True) if row is not None}
        reader.close()
        return found

    def states(self) -> list[tuple[bool, bool, int]]:
        found = self.store.generations()
        return [(each.live, each.previous, each.rows) for each in found]


def keys(first: int) -> set[str]:
    return {str(key) for key in range(first, first + ROWS)}


@pytest.fixture(params=["sqlite", "redis"])
def jobs(request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> Iterator[Jobs]:
    with ExitStack() as stack:
        place = str(tmp_path / "answers")
        if request.param == "redis":
            place = stack.enter_context(redis_server(tmp_path)).url
        made = Jobs(bench, tmp_path, place)
        yield made
        made.store.close()


def test_job__other_machine_writes_the_same_model__both_generations_become_live(
    jobs: Jobs,
) -> None:
    def start_other(units: int) -> None:
        if units == 2:
            jobs.run("b", jobs.rows("new", first=50))
            assert jobs.live() == keys(50)

    done = jobs.run("a", jobs.rows("old"), after=start_other)
    assert done.rows == ROWS
    assert jobs.live() == keys(0)
    assert jobs.states() == [(True, False, ROWS), (False, True, ROWS)]


def test_job__the_same_runs_on_another_machine__both_write_one_generation(jobs: Jobs) -> None:
    rows = jobs.rows("rows")

    def start_again(units: int) -> None:
        if units == 2:
            assert jobs.run("b", rows).rows == ROWS - 2 * UNIT
            assert jobs.live() == keys(0)

    assert jobs.run("a", rows, after=start_again).rows == ROWS
    assert jobs.live() == keys(0)
    assert jobs.states() == [(True, False, ROWS)]


def test_job__interrupted__another_machine_resumes_it_from_the_store(jobs: Jobs) -> None:
    rows = jobs.rows("rows")
    jobs.interrupt("a", rows, units=2)
    assert jobs.run("b", rows).rows == ROWS - 2 * UNIT
    assert jobs.live() == keys(0)
    assert jobs.run("a", rows).rows == 0
    assert jobs.states() == [(True, False, ROWS)]


def test_job__other_is_abandoned__its_generation_is_dropped_after_a_day(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.interrupt("a", jobs.rows("old"), units=2)
    (left,) = jobs.store.generations()
    jobs.run("b", jobs.rows("new", first=50))
    assert [each.rows for each in jobs.store.generations()] == [left.rows, ROWS]
    monkeypatch.setattr("mlctl.services.batch.precomputed_sink.ABANDONED_SECONDS", 0.0)
    jobs.run("b", jobs.rows("newer", first=100))
    assert jobs.states() == [(False, True, ROWS), (True, False, ROWS)]


def test_job__restarted__drops_its_incomplete_generation(jobs: Jobs) -> None:
    jobs.interrupt("a", jobs.rows("rows"), units=2)
    assert jobs.run("b", jobs.rows("rows"), restart=True).rows == ROWS
    assert jobs.states() == [(True, False, ROWS)]
    assert jobs.run("b", jobs.rows("rows"), restart=True).rows == ROWS
    assert jobs.states() == [(False, True, ROWS), (True, False, ROWS)]


def test_job__generation_was_dropped__writes_no_more(jobs: Jobs) -> None:
    def drop(units: int) -> None:
        if units == 2:
            (mine,) = jobs.store.generations()
            jobs.store.drop(mine.number)

    with pytest.raises(MlctlError, match="was dropped while the job wrote it") as caught:
        jobs.run("a", jobs.rows("rows"), after=drop)
    assert caught.value.code is ErrorCode.JOB_CHANGED
    assert jobs.states() == []


def test_complete_generation__not_live_yet__stays_until_the_next_one_is_complete(
    jobs: Jobs,
) -> None:
    jobs.run("a", jobs.rows("waits"), flip="no")
    jobs.interrupt("b", jobs.rows("next", first=50), units=2)
    assert [each.sealed for each in jobs.store.generations()] == [True, False]
    jobs.run("b", jobs.rows("next", first=50))
    assert jobs.states() == [(True, False, ROWS)]


def test_complete_generation__run_again_without_flip_no__becomes_live(jobs: Jobs) -> None:
    rows = jobs.rows("rows")
    jobs.run("a", rows, flip="no")
    assert jobs.live() == set()
    assert jobs.run("a", rows).rows == 0
    assert jobs.live() == keys(0)


class Crashing:
    """A Redis whose data can go back to a snapshot, as after a crash."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.server: RedisServer = stack.enter_context(redis_server(folder))
        self.url = self.server.url

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def save(self) -> None:
        with self.client() as client:
            client.save()

    def crash(self) -> None:
        """Kill it, and start it with what the last snapshot has."""
        self.server.kill()
        self.server = self._stack.enter_context(redis_server(self._folder, self.server.port))


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Crashing]:
    with ExitStack() as stack:
        yield Crashing(tmp_path, stack)


def test_redis__goes_back_to_a_snapshot_while_a_job_runs__nothing_incomplete_becomes_live(
    bench: Bench, tmp_path: Path, crashing: Crashing
) -> None:
    jobs = Jobs(bench, tmp_path, crashing.url)
    jobs.run("a", jobs.rows("old", first=50))

    def crash(units: int) -> None:
        if units == 2:
            crashing.save()
        elif units == 4:
            crashing.crash()

    with pytest.raises(MlctlError, match="has lost committed rows") as caught:
        jobs.run("a", jobs.rows("rows"), after=crash)
    assert caught.value.code is ErrorCode.JOB_CHANGED
    assert jobs.live() == keys(50)
    assert jobs.run("a", jobs.rows("rows")).rows == ROWS - 2 * UNIT
    assert jobs.live() == keys(0)


def test_redis__goes_back_to_a_snapshot_after_the_last_commit__nothing_incomplete_becomes_live(
    bench: Bench, tmp_path: Path, crashing: Crashing
) -> None:
    jobs = Jobs(bench, tmp_path, crashing.url)

    def crash(units: int) -> None:
        if units == UNITS - 1:
            crashing.save()
        elif units == UNITS:
            crashing.crash()

    with pytest.raises(MlctlError, match="has lost committed rows"):
        jobs.run("a", jobs.rows("rows"), after=crash)
    assert jobs.live() == set()
    assert jobs.run("a", jobs.rows("rows")).rows == UNIT
    assert jobs.live() == keys(0)


def test_redis__goes_back_to_a_snapshot_between_two_runs__lost_rows_are_written_again(
    bench: Bench, tmp_path: Path, crashing: Crashing
) -> None:
    jobs = Jobs(bench, tmp_path, crashing.url)

    def save(units: int) -> None:
        if units == 2:
            crashing.save()
        elif units == 4:
            raise JobStoppedError

    with pytest.raises(JobStoppedError):
        jobs.run("a", jobs.rows("rows"), after=save)
    crashing.crash()
    assert jobs.run("a", jobs.rows("rows")).rows == ROWS - 2 * UNIT
    assert jobs.live() == keys(0)


def test_redis__evicts_the_rows__they_are_missed_and_written_again(
    bench: Bench, tmp_path: Path, crashing: Crashing
) -> None:
    jobs = Jobs(bench, tmp_path, crashing.url)

    def evict(units: int) -> None:
        if units == 3:
            with crashing.client() as client:
                (rows,) = client.keys("*:rows:*")
                client.delete(rows)

    with pytest.raises(MlctlError, match="has lost committed rows"):
        jobs.run("a", jobs.rows("rows"), after=evict)
    assert jobs.run("a", jobs.rows("rows"), flip="no").rows == ROWS
    with crashing.client() as client:
        (rows,) = client.keys("*:rows:*")
        client.delete(rows)
    (made,) = jobs.store.generations()
    with pytest.raises(MlctlError, match="has lost rows") as caught:
        jobs.store.flip(made.number, 1.0)
    assert caught.value.code is ErrorCode.NOT_READY
    assert jobs.run("a", jobs.rows("rows")).rows == ROWS
    assert jobs.live() == keys(0)
