"""Time and cost of a job: sums over a sample of its units.

One thread reads, scores and writes the sample, to a temporary folder. Another output may be slower.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig, make_job, make_plan
from mlctl.services.batch.local_executor import usual_threads
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.units import ScoredPiece, Source, Unit
from mlctl.services.batch.worker import Scoring, UnitWorker
from mlctl.services.layout.scorable import Scorable

_MILLION = 1e6
_HOUR = 3600.0
# A mean of fewer units has no spread.
_MIN_UNITS = 4


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The sample, and the sums for a million rows and for all rows of the input.

    Attributes:
        resource: `core`, or `GPU` for a model on one; seconds, hours and the price are of these.
        parallel: cores that the job uses at once; 1 for a GPU.
        open_seconds: time to open the model, in each process.
        million_seconds: resource-seconds of a million rows.
        spread: their standard deviation between units of the sample.
        total_rows: None, as are the sums over all rows, if only reading the input counts them.
        million_cost: None, as is `job_cost`, without a price.
    """

    resource: str
    parallel: int
    units: int
    rows: int
    bad: int
    open_seconds: float
    million_seconds: float
    spread: float
    total_rows: int | None
    job_hours: float | None
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
    hour_price: float | None,
    seconds: float,
    threads: int | None = None,
    batch_rows: int | None = None,
) -> CostEstimate:
    """Score units of `source` for about `seconds`; `hour_price` is that of a core or GPU.

    INVALID_INPUT if the source has no rows.
    """
    plan, planned = make_plan(model, source, config)
    job = make_job(model, source, plan, config)
    units = list(planned.units)
    total = None if any(each.rows is None for each in units) else sum(u.rows or 0 for u in units)
    with tempfile.TemporaryDirectory(prefix="mlctl-estimate-") as folder:
        sink = open_sink(f"{folder}/answers", config.format)
        sink.begin(job)
        since = time.monotonic()
        scoring = Scoring(model, source, sink, plan, job.schema, job.quarantine, None, batch_rows)
        worker = scoring.open()
        opened = time.monotonic() - since
        on_cpu = worker.scorer.scorer.provider == "cpu"
        clock = time.process_time if on_cpu else time.monotonic
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
    pace, parallel = spent / rows, usual_threads(worker.scorer, threads) if on_cpu else 1
    hours = None if total is None else total * pace / _HOUR
    return CostEstimate(
        resource="core" if on_cpu else "GPU",
        parallel=parallel,
        units=len(paces),
        rows=rows,
        bad=bad,
        open_seconds=opened,
        million_seconds=pace * _MILLION,
        spread=statistics.stdev(paces) * _MILLION if len(paces) > 1 else 0.0,
        total_rows=total,
        job_hours=hours,
        job_seconds=None if hours is None else hours * _HOUR / parallel,
        million_cost=None if hour_price is None else hour_price * pace * _MILLION / _HOUR,
        job_cost=None if hours is None or hour_price is None else hours * hour_price,
    )


def _pieces_until(worker: UnitWorker, unit: Unit, end: float) -> Iterator[ScoredPiece]:
    """Score the first piece of `unit`, and others until `end`: a unit may be a large file."""
    for piece in worker.source.read(unit, worker.columns, worker.piece_rows):
        yield worker.scorer.score(unit, piece)
        if time.monotonic() >= end:
            return
