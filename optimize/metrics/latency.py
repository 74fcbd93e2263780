"""How long a session takes for one batch: warmed up, bounded in time, with its spread.

The time for one batch size is bounded also for models that need seconds for a batch:
fewer runs are then made, and their number is part of the result.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bundle.clock import Clock
from optimize.data import Rows, Tensors
from services.runtime.session import Session

_WARM_UP_RUNS = 3
_WARM_UP_SECONDS = 0.1
_MIN_RUNS = 5
_MAX_RUNS = 300
_SECONDS = 0.15
_HARD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Milliseconds for one batch of `batch` rows on one thread, over `runs` runs."""

    batch: int
    runs: int
    median_ms: float
    q1_ms: float
    q3_ms: float
    p95_ms: float

    @property
    def rows_per_second(self) -> float:
        return self.batch / self.median_ms * 1000.0


def measure(
    session: Session, rows: Rows, batches: Sequence[int], clock: Clock
) -> tuple[BatchLatency, ...]:
    """The latency of `session` for each batch size, on rows taken in turn."""
    return tuple(_measure_batch(session, rows, batch, clock) for batch in batches)


def _measure_batch(session: Session, rows: Rows, batch: int, clock: Clock) -> BatchLatency:
    inputs = rows.take(np.arange(batch) % rows.count).inputs
    _timed_runs(session, inputs, clock, (1, _WARM_UP_RUNS), (0.0, _WARM_UP_SECONDS))
    # A collection inside a run would be charged to the model.
    enabled = gc.isenabled()
    gc.disable()
    try:
        seconds = _timed_runs(
            session, inputs, clock, (_MIN_RUNS, _MAX_RUNS), (_SECONDS, _HARD_SECONDS)
        )
    finally:
        if enabled:
            gc.enable()
    return summarize(batch, seconds)


def _timed_runs(
    session: Session,
    inputs: Tensors,
    clock: Clock,
    runs: tuple[int, int],
    seconds: tuple[float, float],
) -> list[float]:
    """Run until (least runs and wanted seconds) are reached, or most runs, or most seconds."""
    taken: list[float] = []
    begin = clock.monotonic()
    while True:
        start = clock.monotonic()
        session.run(inputs)
        now = clock.monotonic()
        taken.append(now - start)
        total = now - begin
        if len(taken) >= runs[1] or total >= seconds[1]:
            return taken
        if len(taken) >= runs[0] and total >= seconds[0]:
            return taken


def summarize(batch: int, seconds: Sequence[float]) -> BatchLatency:
    """Median, quartiles and 95th percentile of at least one run, in milliseconds."""
    milliseconds = sorted(value * 1000.0 for value in seconds)
    q1, q3, p95 = (float(value) for value in np.percentile(milliseconds, [25, 75, 95]))
    return BatchLatency(
        batch=batch,
        runs=len(milliseconds),
        median_ms=round(statistics.median(milliseconds), 6),
        q1_ms=round(q1, 6),
        q3_ms=round(q3, 6),
        p95_ms=round(p95, 6),
    )
