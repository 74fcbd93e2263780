"""Run a job: read, score and commit until each row has an answer or a reason why not.

After any interruption the same call resumes behind the last commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, Protocol, TypeVar, runtime_checkable

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.files import NO_SPACE
from services.batch.base import (
    BatchTotals,
    Chunk,
    JobProgress,
    Sink,
    Source,
    SplittableSource,
    Unit,
    UnitResult,
)
from services.batch.limits import ErrorLimit
from services.runtime.bisect import TooManyError

# Answers in memory until they are committed, and work that a kill may cost.
_COMMIT_BYTES = 32 << 20
_COMMIT_SECONDS = 10.0
_PASSING = frozenset({ErrorCode.SINK_UNAVAILABLE, ErrorCode.DISK_FULL})
_LONGEST_WAIT = 30.0


class BatchPhase(StrEnum):
    """Kind of an event."""

    STARTED = "started"
    COMMITTED = "committed"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """Progress of a job: `totals` over all its runs, `rows` of this run, after `seconds`.

    `total` rows are to be dealt with, None if that is not known; `detail` is a sentence.
    """

    phase: BatchPhase
    totals: BatchTotals
    rows: int
    total: int | None
    seconds: float
    detail: str = ""


Work = TypeVar("Work")
Work_contra = TypeVar("Work_contra", contravariant=True)


class Executor(Protocol[Work_contra]):
    """Scores chunks, or units that it reads itself."""

    def results(self, work: Iterable[Work_contra], /) -> Generator[UnitResult, None, None]:
        """Yield a result for each item, in any order; closed early if the job ends."""
        ...


@runtime_checkable
class ReadingExecutor(Executor[Chunk], Protocol):
    """An executor whose scorers can read a source themselves, which saves sending the rows."""

    def reading(self, source: SplittableSource, columns: Sequence[str]) -> Executor[Unit]:
        """Return this executor for units of `source` with `columns`."""
        ...


@dataclass(slots=True)
class Run:
    """One run of a job over what `progress` leaves to do; `patience` in seconds.

    `stop`, once it is set, ends it after what was begun is committed.
    """

    sink: Sink
    progress: JobProgress
    total: int | None
    limit: ErrorLimit
    watch: Callable[[BatchEvent], None]
    stop: threading.Event = field(default_factory=threading.Event)
    patience: float = 300.0
    clock: Clock = field(default_factory=SystemClock)
    totals: BatchTotals = field(init=False)
    _since: float = field(init=False)
    _reason: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.totals = self.progress.totals
        self._since = self.clock.monotonic()

    def go(self, work: Iterator[Work], executor: Executor[Work]) -> BatchTotals:
        """Score and commit all `work`.

        TOO_MANY_BAD_ROWS, INTERRUPTED, DISK_FULL, SINK_UNAVAILABLE and SOURCE_UNAVAILABLE leave
        what is committed.
        """
        self._begin()
        self._score(work, executor)
        return self._end()

    def read(
        self, source: Source, columns: Sequence[str], executor: Executor[Chunk]
    ) -> BatchTotals:
        """Score and commit the units of `source` that are not done.

        If it is away, all that came is committed; then it is waited for, and read on from there.
        """
        rest = _Rest(source, columns, set(self.progress.done))
        self._begin()
        self._score(rest.chunks(), executor)
        patience = self._patience()
        while rest.away is not None:
            if rest.came:
                patience = self._patience()
            if not self.stop.is_set():
                patience.wait(rest.away)
            self._score(rest.chunks(), executor)
        return self._end()

    def _begin(self) -> None:
        self._tell(BatchPhase.STARTED)
        self._check()

    def _end(self) -> BatchTotals:
        self.total = self.totals.seen if self.total is None else self.total
        self._check()
        return self.totals

    def _score(self, work: Iterator[Work], executor: Executor[Work]) -> None:
        """Score and commit all `work`; INTERRUPTED if the run is stopped before its end."""
        if self.stop.is_set():
            raise self._stopped()
        feed = _Feed(work, self.stop)
        try:
            with closing(executor.results(feed)) as results:
                for group in grouped(results, self.sink.commit_rows, self.clock):
                    self._commit(group)
        except TooManyError as error:
            self.limit.check(
                self.totals.bad + len(error.reasons),
                self.total,
                self.totals.seen + len(error.reasons),
                next(reversed(error.reasons.values())),
            )
            raise
        if not feed.exhausted:
            raise self._stopped()

    def _stopped(self) -> MlctlError:
        return MlctlError(
            ErrorCode.INTERRUPTED, f"stopped after {self.totals.seen} rows, all of them committed"
        )

    def finish(self, summary: Mapping[str, object]) -> None:
        """Mark the job as complete; waits for the sink as a commit does."""
        self._patiently(lambda: self.sink.finish(summary))
        self._tell(BatchPhase.FINISHED)

    @property
    def seconds(self) -> float:
        """Duration of this run so far."""
        return self.clock.monotonic() - self._since

    def _commit(self, group: Sequence[UnitResult]) -> None:
        self._patiently(lambda: self.sink.commit(group))
        self.totals = replace(
            self.totals,
            units=self.totals.units + len(group),
            rows=self.totals.rows + sum(result.table.num_rows for result in group),
            bad=self.totals.bad + sum(len(r.bad) - len(r.resolved) for r in group),
            skipped=self.totals.skipped + sum(result.skipped for result in group),
        )
        reasons = [bad.reason for result in group for bad in result.bad]
        self._reason = reasons[-1] if reasons else self._reason
        self._tell(BatchPhase.COMMITTED)
        self._check()

    def _check(self) -> None:
        self.limit.check(self.totals.bad, self.total, self.totals.seen, self._reason)

    def _patiently(self, act: Callable[[], None]) -> None:
        """Retry `act` while the sink is full or unreachable, as long as patience lasts."""
        patience = self._patience()
        while True:
            try:
                return act()
            except (OSError, MlctlError) as error:
                problem = _passing(error)
                if problem is None:
                    raise
                if self.stop.is_set():
                    raise problem from error
                patience.wait(problem)

    def _patience(self) -> _Patience:
        return _Patience(
            self.clock, self.clock.monotonic() + self.patience, self.stop, self._paused
        )

    def _paused(self, detail: str) -> None:
        self._tell(BatchPhase.PAUSED, detail)

    def _tell(self, phase: BatchPhase, detail: str = "") -> None:
        rows = self.totals.seen - self.progress.totals.seen
        self.watch(BatchEvent(phase, self.totals, rows, self.total, self.seconds, detail))


def grouped(results: Iterable[UnitResult], rows: int, clock: Clock) -> Iterator[list[UnitResult]]:
    """Group results into commits: by `rows`, by bytes in memory, or by time since the last one.

    The last group may be smaller.
    """
    group: list[UnitResult] = []
    count, size, since = 0, 0, clock.monotonic()
    for result in results:
        group.append(result)
        count += result.table.num_rows + len(result.bad)
        size += result.table.nbytes
        late = clock.monotonic() - since >= _COMMIT_SECONDS
        if count >= rows or size >= _COMMIT_BYTES or late:
            yield group
            group, count, size, since = [], 0, 0, clock.monotonic()
    if group:
        yield group


@dataclass(slots=True)
class _Patience:
    """Exponential backoff until `deadline`."""

    clock: Clock
    deadline: float
    stop: threading.Event
    tell: Callable[[str], None]
    _wait: float = field(init=False, default=0.5)

    def wait(self, problem: MlctlError) -> None:
        """Wait, or return early if the run is stopped; raises `problem` after the deadline."""
        left = self.deadline - self.clock.monotonic()
        if left <= 0:
            raise problem
        self._wait = min(2 * self._wait, _LONGEST_WAIT, left)
        self.tell(f"{problem.message}; trying again in {self._wait:.0f} s")
        self.stop.wait(self._wait)


@dataclass(slots=True)
class _Rest:
    """The units of a source that are not in `given`, which grows as chunks are read."""

    source: Source
    columns: Sequence[str]
    given: set[str]
    away: MlctlError | None = field(init=False, default=None)
    came: bool = field(init=False, default=False)

    def chunks(self) -> Iterator[Chunk]:
        """Yield chunks to the end, or until the source is `away`; sets `came` once there is one."""
        self.away, self.came = None, False
        try:
            for chunk in self.source.scan(self.columns, frozenset(self.given)):
                self.given.add(chunk.unit.id)
                self.came = True
                yield chunk
        except MlctlError as error:
            if error.code is not ErrorCode.SOURCE_UNAVAILABLE:
                raise
            self.away = error


class _Feed(Generic[Work]):
    """Work until `stop` is set; `exhausted` once the last item was given.

    Closes the work in the thread that reads it: a connection of SQLite belongs to one thread.
    """

    def __init__(self, work: Iterator[Work], stop: threading.Event) -> None:
        self._work = work
        self._stop = stop
        self.exhausted = False

    def __iter__(self) -> Iterator[Work]:
        try:
            while not self._stop.is_set():
                item = next(self._work, None)
                if item is None:
                    self.exhausted = True
                    return
                yield item
        finally:
            if isinstance(self._work, Generator):
                self._work.close()


def _passing(error: Exception) -> MlctlError | None:
    """Return the error to end with if this one is transient, else None."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        where = "" if error.filename is None else f" for {error.filename}"
        return MlctlError(ErrorCode.DISK_FULL, f"there is no space left{where}")
    if isinstance(error, MlctlError) and error.code in _PASSING:
        return error
    return None
