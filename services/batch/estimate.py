"""Time and cost of a job: sums over a sample of its units.

The sample is read, scored and written to a temporary folder by one thread. Another output may be
slower.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.engine import UnitWorker, usual_threads
from services.batch.job import BatchConfig, Scoring, make_job, make_plan
from services.batch.sinks import open_sink
from services.batch.units import ScoredPiece, Source, Unit
from services.runtime.scorable import Scorable

_MILLION = 1e6
_HOUR = 3600.0
# A mean of fewer units has no spread.
_MIN_UNITS = 4


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The sample, and the sums for a million rows and for the whole input.

    `core_seconds` are those of a million rows (seconds of the device, for a model on one),
    `spread` their
    standard deviation between units. Values are None if `total_rows` or the price is unknown.
    """

    threads: int
    units: int
    rows: int
    bad: int
    open_seconds: float
    core_seconds: float
    spread: float
    total_rows: int | None
    core_hours: float | None
    job_seconds: float | None
    million_cost: float | None
    job_cost: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for --json."""
        return asdict(self)


def estimate(
    model: Scorable,
    source: Source,
    config: BatchConfig,
    core_hour: float | None,
    seconds: float,
    threads: int | None = None,
    batch_rows: int | None = None,
) -> CostEstimate:
    """Score units of `source` for about `seconds`; `core_hour` is the price of a core for an hour.

    INVALID_INPUT if the source has no rows.
    """
    plan = make_plan(model, source.schema, config)
    job = make_job(model, source, plan, config)
    units = list(source.plan(plan.columns, plan.filter).units)
    total = None if any(each.rows is None for each in units) else sum(u.rows or 0 for u in units)
    with tempfile.TemporaryDirectory(prefix="mlctl-estimate-") as folder:
        sink = open_sink(f"{folder}/answers", config.format)
        sink.begin(job)
        since = time.monotonic()
        scoring = Scoring(model, source, sink, plan, job.schema, job.quarantine, None, batch_rows)
        worker = scoring.open()
        opened = time.monotonic() - since
        clock = time.process_time if worker.scorer.scorer.provider == "cpu" else time.monotonic
        paces = list[float]()
        rows, bad, spent = 0, 0, 0.0
        end = time.monotonic() + seconds
        for unit in random.Random(0).sample(units, len(units)):  # noqa: S311
            if time.monotonic() >= end and len(paces) >= _MIN_UNITS:
                break
            begun = clock()
            marker = sink.commit(unit, _pieces_until(worker, unit, end))
            took, count = clock() - begun, marker.rows + marker.bad + marker.skipped
            rows, bad, spent = rows + count, bad + marker.bad, spent + took
            paces += [took / count] if count else []
    if not rows:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{source.name} has no rows")
    pace, cores = spent / rows, usual_threads(worker.scorer, threads)
    hours = None if total is None else total * pace / _HOUR
    return CostEstimate(
        threads=cores,
        units=len(paces),
        rows=rows,
        bad=bad,
        open_seconds=opened,
        core_seconds=pace * _MILLION,
        spread=statistics.stdev(paces) * _MILLION if len(paces) > 1 else 0.0,
        total_rows=total,
        core_hours=hours,
        job_seconds=None if hours is None else hours * _HOUR / cores,
        million_cost=None if core_hour is None else core_hour * pace * _MILLION / _HOUR,
        job_cost=None if hours is None or core_hour is None else hours * core_hour,
    )


def _pieces_until(worker: UnitWorker, unit: Unit, end: float) -> Iterator[ScoredPiece]:
    """Score the first piece of `unit`, and others until `end`: a unit may be a large file."""
    for piece in worker.source.read(unit, worker.columns, worker.piece_rows):
        yield worker.scorer.score(unit, piece)
        if time.monotonic() >= end:
            return
