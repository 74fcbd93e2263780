"""Patience, grouping, and what an executor's failure does."""

from __future__ import annotations

import errno
import threading
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from services.batch.base import BadRow, BatchTotals, Chunk, Job, JobProgress, Unit, UnitResult
from services.batch.engine import BatchEvent, BatchPhase, Run, grouped
from services.batch.limits import ErrorLimit
from services.batch.local_executor import LocalExecutor


def chunks(count: int, rows: int = 10) -> list[Chunk]:
    return [
        Chunk(
            Unit(f"{i:04}", "f", i * rows, rows), pa.table({"id": range(i * rows, (i + 1) * rows)})
        )
        for i in range(count)
    ]


def score(chunk: Chunk) -> UnitResult:
    return UnitResult(chunk.unit, chunk.table)


@dataclass
class MemorySink:
    """Keeps results; raises each of `failures` once, before a commit."""

    failures: list[Exception] = field(default_factory=list)
    commit_rows: int = 25
    committed: list[list[UnitResult]] = field(default_factory=list)
    finished: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None: ...

    def begin(self, job: Job, *, restart: bool = False) -> JobProgress:
        raise NotImplementedError

    def commit(self, results: Sequence[UnitResult]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(list(results))

    def finish(self, _summary: object) -> None:
        self.finished = True

    def ids(self) -> list[int]:
        return [row for group in self.committed for r in group for row in r.table["id"].to_pylist()]


class Waits(threading.Event):
    """An event whose waiting moves a clock instead."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self._clock.advance(timeout)
        return self.is_set()


def run_with(
    sink: MemorySink, limit: str = "0", total: int | None = None
) -> tuple[Run, Waits, list[BatchEvent]]:
    clock, events = ManualClock(), list[BatchEvent]()
    waits = Waits(clock)
    run = Run(
        sink, JobProgress(), total, ErrorLimit.parse(limit), events.append, waits, 60.0, clock
    )
    return run, waits, events


FULL = OSError(errno.ENOSPC, "no space left on device")
LIMITED = OSError(errno.EFBIG, "file too large")
GONE = MlctlError(ErrorCode.SINK_UNAVAILABLE, "the connection to the database was lost")
STORE_FULL = MlctlError(ErrorCode.DISK_FULL, "there is no space left for precomputed answers")


@pytest.mark.parametrize("problem", [FULL, LIMITED, GONE, STORE_FULL])
def test_a_full_disk_or_a_lost_connection_is_waited_for(problem: Exception) -> None:
    sink = MemorySink([problem, problem])
    run, waits, events = run_with(sink)
    run.go(iter(chunks(10)), LocalExecutor(score, 2))
    assert sink.ids() == list(range(100))
    assert waits.waited == [1.0, 2.0]
    paused = [event.detail for event in events if event.phase is BatchPhase.PAUSED]
    assert len(paused) == 2
    assert "trying again in 1 s" in paused[0]


@pytest.mark.parametrize(
    ("problem", "code"), [(FULL, ErrorCode.DISK_FULL), (GONE, ErrorCode.SINK_UNAVAILABLE)]
)
def test_patience_has_an_end(problem: Exception, code: ErrorCode) -> None:
    sink = MemorySink([problem] * 1000)
    run, waits, _events = run_with(sink)
    with pytest.raises(MlctlError) as caught:
        run.go(iter(chunks(10)), LocalExecutor(score, 2))
    assert caught.value.code is code
    assert sum(waits.waited) == pytest.approx(60.0)
    assert max(waits.waited) <= 30.0


def test_other_errors_of_a_sink_end_the_job_at_once() -> None:
    run, waits, _events = run_with(MemorySink([OSError(errno.EACCES, "no")]))
    with pytest.raises(PermissionError):
        run.go(iter(chunks(10)), LocalExecutor(score, 2))
    assert waits.waited == []


def test_an_error_of_scoring_keeps_what_was_committed() -> None:
    def fail_late(chunk: Chunk) -> UnitResult:
        if chunk.unit.start >= 60:
            raise MlctlError(ErrorCode.PROVIDER_UNAVAILABLE, "the device is gone")
        return score(chunk)

    sink = MemorySink()
    run, _waits, _events = run_with(sink)
    with pytest.raises(MlctlError, match="the device is gone"):
        run.go(iter(chunks(10)), LocalExecutor(fail_late, 2))
    assert sink.ids() == list(range(60))


def test_an_error_of_reading_is_the_jobs() -> None:
    def broken() -> Generator[Chunk, None, None]:
        yield from chunks(3)
        raise MlctlError(ErrorCode.INVALID_INPUT, "the file ends in the middle of a row")

    sink = MemorySink()
    run, _waits, _events = run_with(sink)
    with pytest.raises(MlctlError, match="in the middle"):
        run.go(broken(), LocalExecutor(score, 2))
    assert sink.ids() == list(range(30))


@dataclass
class Away:
    """A source of ten chunks; each scan ends after as many of them as `lengths` says."""

    lengths: list[int]
    name: str = "far"
    schema: pa.Schema = field(default_factory=lambda: pa.schema([("id", pa.int64())]))

    def identity(self) -> Mapping[str, str]:
        raise NotImplementedError

    def total_rows(self) -> int | None:
        return 100

    def scan(self, _columns: Sequence[str], done: Container[str]) -> Iterator[Chunk]:
        left = [chunk for chunk in chunks(10) if chunk.unit.id not in done]
        length = self.lengths.pop(0) if self.lengths else len(left)
        yield from left[:length]
        if length < len(left):
            raise MlctlError(ErrorCode.SOURCE_UNAVAILABLE, "far cannot be reached")


def test_a_source_that_is_away_is_read_on_after_what_it_gave() -> None:
    sink = MemorySink()
    run, waits, events = run_with(sink, total=100)
    totals = run.read(Away([4, 0, 0, 1]), ["id"], LocalExecutor(score, 2))
    assert sink.ids() == list(range(100))
    assert totals.units == 10
    # Longer each time, until something comes.
    assert waits.waited == [1.0, 2.0, 4.0, 1.0]
    paused = [event.totals.rows for event in events if event.phase is BatchPhase.PAUSED]
    assert paused == [40, 40, 40, 50]
    assert [event.phase for event in events].count(BatchPhase.STARTED) == 1


def test_patience_with_a_source_has_an_end() -> None:
    sink = MemorySink()
    run, waits, _events = run_with(sink, total=100)
    with pytest.raises(MlctlError, match="far cannot be reached") as caught:
        run.read(Away([4, *[0] * 100]), ["id"], LocalExecutor(score, 2))
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
    assert sink.ids() == list(range(40))
    assert sum(waits.waited) == pytest.approx(60.0)


def test_a_stop_ends_the_wait_for_a_source() -> None:
    sink = MemorySink()
    run, waits, events = run_with(sink, total=100)

    def watch(event: BatchEvent) -> None:
        events.append(event)
        if event.phase is BatchPhase.PAUSED:
            waits.set()

    run.watch = watch
    with pytest.raises(MlctlError, match="stopped after 40 rows") as caught:
        run.read(Away([4, 0]), ["id"], LocalExecutor(score, 2))
    assert caught.value.code is ErrorCode.INTERRUPTED
    assert sink.ids() == list(range(40))


@pytest.mark.parametrize("stops", [True, False])
def test_run__ends_before_the_source__source_is_closed_in_the_reading_thread(
    *, stops: bool
) -> None:
    readers, closers = set[str](), set[str]()

    def endless() -> Generator[Chunk, None, None]:
        try:
            for chunk in chunks(1000):
                readers.add(threading.current_thread().name)
                yield chunk
        finally:
            closers.add(threading.current_thread().name)

    def fail(_chunk: Chunk) -> UnitResult:
        raise MlctlError(ErrorCode.PROVIDER_UNAVAILABLE, "the device is gone")

    run, waits, _events = run_with(MemorySink())
    run.watch = lambda event: waits.set() if event.totals.units else None
    with pytest.raises(MlctlError):
        run.go(endless(), LocalExecutor(score if stops else fail, 2))
    assert closers == readers


def test_bad_rows_are_judged_after_each_commit() -> None:
    def one_bad(chunk: Chunk) -> UnitResult:
        bad = BadRow(chunk.unit.start, "poison", {})
        return UnitResult(chunk.unit, chunk.table.slice(1), (bad,))

    sink = MemorySink()
    run, _waits, _events = run_with(sink, "4", 100)
    with pytest.raises(MlctlError, match=r"6 of 60 rows are bad.*poison") as caught:
        run.go(iter(chunks(10)), LocalExecutor(one_bad, 1))
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS
    assert run.totals == BatchTotals(units=6, rows=54, bad=6)


def test_groups_are_large_enough_or_old_enough() -> None:
    clock = ManualClock()

    def results() -> Iterable[UnitResult]:
        for index, chunk in enumerate(chunks(7)):
            clock.advance(11.0 if index == 3 else 0.1)
            yield score(chunk)

    sizes = [len(group) for group in grouped(results(), 25, clock)]
    assert sizes == [3, 1, 3]


def test_results_come_in_order_and_few_chunks_are_ahead() -> None:
    taken = 0
    first_may_end = threading.Event()

    def source() -> Generator[Chunk, None, None]:
        nonlocal taken
        for chunk in chunks(50):
            taken += 1
            if taken == 4:
                first_may_end.set()
            yield chunk

    def slow_first(chunk: Chunk) -> UnitResult:
        if chunk.unit.start == 0:
            assert first_may_end.wait(60)
        return score(chunk)

    found = LocalExecutor(slow_first, 3).results(source())
    starts = []
    for result in found:
        starts.append(result.unit.start)
        assert taken <= len(starts) + 3 + 2 + 1
    assert starts == list(range(0, 500, 10))
