"""Run a job: threads take units; each reads, scores and commits its own.

After any interruption the same job scores the units that have no marker.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.files import NO_SPACE
from services.batch.limits import ErrorLimit
from services.batch.scoring import PieceScorer
from services.batch.units import BatchTotals, Marker, Piece, ScoredPiece, Sink, Source, Unit
from services.runtime.bisect import TooManyError

_TRANSIENT = frozenset({ErrorCode.SINK_UNAVAILABLE, ErrorCode.SOURCE_UNAVAILABLE})
_MAX_WAIT = 30.0
# Pieces of a unit that are read or scored ahead of the one that is written.
_AHEAD = 2
_POLL_SECONDS = 0.2


class BatchPhase(StrEnum):
    """Kind of an event."""

    STARTED = "started"
    COMMITTED = "committed"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """Progress of a job: `totals` over all its runs, `rows` of this run, after `seconds`.

    `total` is the number of rows of the source, None if unknown; `detail` is a sentence.
    """

    phase: BatchPhase
    totals: BatchTotals
    rows: int
    total: int | None
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RunControl:
    """What does not decide the answers.

    `patience` and `grace` are seconds: to wait for a sink or source that is away, and for units in
    progress once `stop` is set.
    """

    limit: ErrorLimit = field(default_factory=lambda: ErrorLimit(share=0.01))
    patience: float = 300.0
    grace: float = 20.0
    watch: Callable[[BatchEvent], None] = lambda _event: None
    stop: threading.Event = field(default_factory=threading.Event)
    restart: bool = False
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class UnitWorker:
    """Reads, scores and commits units of one job; from several threads if `pool` is given.

    `abandoned` ends a unit between two of its pieces, and leaves nothing of it.
    """

    source: Source
    sink: Sink
    columns: tuple[str, ...]
    scorer: PieceScorer
    piece_rows: int
    max_bad: int | None
    pool: ThreadPoolExecutor | None = None
    abandoned: threading.Event = field(default_factory=threading.Event)

    def process(self, unit: Unit) -> Marker:
        """Commit `unit` unless another run has; TooManyError if too many of its rows are bad."""
        marker = self.sink.find(unit)
        return marker or self.sink.commit(unit, self._scored(unit))

    def _scored(self, unit: Unit) -> Iterator[ScoredPiece]:
        bad = 0
        pieces = self.source.read(unit, self.columns, self.piece_rows)
        for scored in self._in_order(unit, pieces):
            if self.abandoned.is_set():
                raise MlctlError(ErrorCode.INTERRUPTED, f"unit {unit.id} was abandoned")
            if scored.quarantine is not None:
                bad += scored.quarantine.num_rows
                if self.max_bad is not None and bad > self.max_bad:
                    reason = str(scored.quarantine["mlctl_reason"][-1])
                    raise TooManyError(dict.fromkeys(range(bad), reason))
            yield scored

    def _in_order(self, unit: Unit, pieces: Iterator[Piece]) -> Iterator[ScoredPiece]:
        """Score in the pool while this thread reads ahead and the caller writes."""
        if self.pool is None:
            yield from (self.scorer.score(unit, piece) for piece in pieces)
            return
        pending: deque[Future[ScoredPiece]] = deque()
        for piece in pieces:
            pending.append(self.pool.submit(self.scorer.score, unit, piece))
            if len(pending) > _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@dataclass(slots=True)
class Run:
    """Counts, limits and events of one run over units that are not committed yet."""

    control: RunControl
    totals: BatchTotals
    total: int | None
    _before: BatchTotals = field(init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.totals
        self._since = self.control.clock.monotonic()
        self.tell(BatchPhase.STARTED)
        self.check()

    @property
    def seconds(self) -> float:
        """Duration of this run so far."""
        return self.control.clock.monotonic() - self._since

    @property
    def rows(self) -> int:
        """Rows of this run so far."""
        return self.totals.seen - self._before.seen

    def add(self, marker: Marker) -> None:
        """Count a committed unit; TOO_MANY_BAD_ROWS beyond the limit."""
        self.totals = replace(
            self.totals,
            units=self.totals.units + 1,
            rows=self.totals.rows + marker.rows,
            bad=self.totals.bad + marker.bad,
            skipped=self.totals.skipped + marker.skipped,
        )
        self.tell(BatchPhase.COMMITTED)
        self.check(marker.reason)

    def check(self, reason: str = "") -> None:
        """Raise TOO_MANY_BAD_ROWS if more rows are bad than the limit allows."""
        self.control.limit.check(self.totals.bad, self.total, self.totals.seen, reason)

    def too_many(self, error: TooManyError) -> MlctlError:
        """Return the error of a unit that alone has more bad rows than allowed."""
        bad = self.totals.bad + len(error.reasons)
        seen = self.totals.seen + len(error.reasons)
        reason = next(reversed(error.reasons.values()))
        try:
            self.control.limit.check(bad, self.total, seen, reason)
        except MlctlError as found:
            return found
        return MlctlError(ErrorCode.TOO_MANY_BAD_ROWS, f"{bad} of {seen} rows are bad: {reason}")

    def interrupted(self) -> MlctlError:
        """Return the error of a run that was stopped."""
        return MlctlError(
            ErrorCode.INTERRUPTED, f"stopped after {self.totals.seen} rows, all of them committed"
        )

    def tell(self, phase: BatchPhase, detail: str = "") -> None:
        """Report an event."""
        self.control.watch(
            BatchEvent(phase, self.totals, self.rows, self.total, self.seconds, detail)
        )

    def patiently(self, act: Callable[[], Marker | None]) -> Marker | None:
        """Repeat `act` within the patience while sink or source is away or the disk is full."""
        clock, pause = self.control.clock, 0.5
        deadline = clock.monotonic() + self.control.patience
        while True:
            try:
                return act()
            except (OSError, MlctlError) as error:
                problem = _transient(error)
                if problem is None:
                    raise
                left = deadline - clock.monotonic()
                if left <= 0 or self.control.stop.is_set():
                    raise problem from error
                pause = min(2 * pause, _MAX_WAIT, left)
                self.tell(BatchPhase.PAUSED, f"{problem.message}; trying again in {pause:.0f} s")
                self.control.stop.wait(pause)


def score_units(run: Run, units: Sequence[Unit], worker: UnitWorker, threads: int) -> None:
    """Commit `units` with `threads` threads; INTERRUPTED if the run is stopped before the end.

    Other errors end the run too. Units in progress then have the grace to finish, or are abandoned
    at once after an error.
    """
    waiting, busy = deque(units), set[Future[Marker | None]]()
    stop, clock = run.control.stop, run.control.clock
    deadline: float | None = None
    pool = ThreadPoolExecutor(threads, "mlctl-unit")
    try:
        while busy or (waiting and not stop.is_set()):
            while waiting and len(busy) < threads and not stop.is_set():
                unit = waiting.popleft()
                busy.add(pool.submit(run.patiently, lambda unit=unit: worker.process(unit)))  # type: ignore[misc]
            done, busy = wait(busy, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                marker = future.result()
                assert marker is not None
                run.add(marker)
            if stop.is_set():
                deadline = deadline or clock.monotonic() + run.control.grace
                if clock.monotonic() >= deadline:
                    break
    except TooManyError as error:
        raise run.too_many(error) from error
    finally:
        worker.abandoned.set()
        pool.shutdown(wait=False, cancel_futures=True)
    if waiting or busy:
        raise run.interrupted()


def usual_threads(scorer: PieceScorer, wanted: int | None) -> int:
    """Return how many units are in progress at once.

    All cores where the model runs in several threads at once; three for a device, so that one unit
    is read and one written while the device runs another; else one, as a transform holds Python's
    lock.
    """
    if wanted is not None:
        return wanted
    if scorer.scorer.thread_safe:
        return len(os.sched_getaffinity(0))
    return 3 if scorer.scorer.provider != "cpu" else 1


def _transient(error: Exception) -> MlctlError | None:
    """Return the error to end with if this one may pass, else None."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return MlctlError(ErrorCode.DISK_FULL, "there is no space left for the answers")
    if isinstance(error, MlctlError) and error.code in _TRANSIENT:
        return error
    return None
