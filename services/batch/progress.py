"""A run of a job: its events, its counts, and its limit of bad rows."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from mlctl.core.backoff import pause_after
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import NO_SPACE
from mlctl.services.batch.units import BatchTotals, Marker

_LIMIT_FORM = re.compile(r"(\d+)|(\d+(?:\.\d+)?)%")
# A share is judged on at least this many rows: the very first row may be bad.
_MIN_ROWS = 1000
_TRANSIENT = frozenset({ErrorCode.SINK_UNAVAILABLE, ErrorCode.SOURCE_UNAVAILABLE})
_MIN_WAIT, _MAX_WAIT = 1.0, 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """At most `count` bad rows, or if that is None, `share` (0 to 1) of all rows."""

    count: int | None = None
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """Parse `N` or `P%`; INVALID_INPUT for anything else."""
        match = _LIMIT_FORM.fullmatch(text.strip())
        if match is None or (match[2] and float(match[2]) > 100):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--max-errors {text}: write a number of rows such as 100, or a share such as 1%",
            )
        return cls(count=int(match[1])) if match[1] else cls(share=float(match[2]) / 100)

    def max_bad(self, total: int | None, rows_read: int) -> int:
        """Return how many of `total` rows may be bad; of `rows_read` while total is unknown."""
        if self.count is not None:
            return self.count
        return int(self.share * (max(rows_read, _MIN_ROWS) if total is None else total))

    def check(self, bad: int, total: int | None, rows_read: int, reason: str = "") -> None:
        """Raise TOO_MANY_BAD_ROWS if `bad` of `rows_read` rows exceed the limit."""
        if bad <= self.max_bad(total, rows_read):
            return
        limit = f"{self.count}" if self.count is not None else f"{self.share * 100:g}%"
        last = f"; the last one: {reason}" if reason else ""
        raise MlctlError(
            ErrorCode.TOO_MANY_BAD_ROWS,
            f"{bad} of {rows_read} rows are bad, more than --max-errors {limit} allows{last}",
        )


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
    """Settings that do not decide the answers.

    `patience` and `grace` are seconds: to wait for an unavailable sink or source, and for units in
    progress once `stop` is set.
    """

    limit: ErrorLimit = field(default_factory=lambda: ErrorLimit(share=0.01))
    patience: float = 300.0
    grace: float = 20.0
    watch: Callable[[BatchEvent], None] = lambda _event: None
    stop: threading.Event = field(default_factory=threading.Event)
    restart: bool = False
    clock: Clock = field(default_factory=SystemClock)


@dataclass(slots=True)
class Run:
    """Counts, limits and events of one run over units that are not committed yet."""

    control: RunControl
    totals: BatchTotals
    total: int | None
    _before: BatchTotals = field(init=False)
    _deadline: float | None = field(default=None, init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.totals
        self._since = self.control.clock.monotonic()
        self.report(BatchPhase.STARTED)
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
        self.totals += marker
        self.report(BatchPhase.COMMITTED)
        self.check(marker.reason)

    def check(self, reason: str = "") -> None:
        """Raise TOO_MANY_BAD_ROWS if more rows are bad than the limit allows."""
        self.control.limit.check(self.totals.bad, self.total, self.totals.seen, reason)

    def check_unit(self, reasons: dict[int, str]) -> None:
        """Raise TOO_MANY_BAD_ROWS for the bad rows of a unit that has too many to be committed."""
        bad, rows_read = (count + len(reasons) for count in (self.totals.bad, self.totals.seen))
        self.control.limit.check(bad, self.total, rows_read, next(reversed(reasons.values())))

    def is_expired(self) -> bool:
        """Return whether the run was stopped, and its grace has passed since the first call."""
        if not self.control.stop.is_set():
            return False
        now = self.control.clock.monotonic()
        self._deadline = self._deadline or now + self.control.grace
        return now >= self._deadline

    def interrupted(self) -> MlctlError:
        """Return the error of a run that was stopped."""
        return MlctlError(
            ErrorCode.INTERRUPTED, f"stopped after {self.totals.seen} rows, all of them committed"
        )

    def report(self, phase: BatchPhase, detail: str = "") -> None:
        """Report an event."""
        self.control.watch(
            BatchEvent(phase, self.totals, self.rows, self.total, self.seconds, detail)
        )

    def patiently(self, act: Callable[[], T]) -> T:
        """Repeat `act` within the patience after transient errors and on a full disk."""
        clock, failures = self.control.clock, 0
        deadline = clock.monotonic() + self.control.patience
        while True:
            try:
                return act()
            except (OSError, MlctlError) as error:
                problem = _transient(error)
                if problem is None:
                    raise
                rest = deadline - clock.monotonic()
                if rest <= 0 or self.control.stop.is_set():
                    raise problem from error
                failures += 1
                pause = min(pause_after(failures, _MIN_WAIT, _MAX_WAIT), rest)
                self.report(BatchPhase.PAUSED, f"{problem.message}; trying again in {pause:.0f} s")
                self.control.stop.wait(pause)


def _transient(error: Exception) -> MlctlError | None:
    """Return the error to end with if this one may pass, else None."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return MlctlError(ErrorCode.DISK_FULL, "there is no space left for the answers")
    if isinstance(error, MlctlError) and error.code in _TRANSIENT:
        return error
    return None
