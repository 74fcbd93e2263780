"""Time and cost of a job, from a sample of its units.

The sample is scored and committed as a job does it, into a temporary folder. Another place for
the answers takes its own time.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Chunk, SinkRequest, Source, SplittableSource
from services.batch.job import (
    BatchConfig,
    RunControl,
    Scoring,
    executor_of,
    make_job,
    make_recipe,
    start,
    usual_threads,
)
from services.batch.limits import ErrorLimit
from services.batch.sinks import open_sink
from services.runtime.scorable import Scorable

_MILLION = 1e6
_HOUR = 3600.0
# One unit for each thread says nothing about a steady pace.
_MIN_UNITS = 4


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The sample, its pace, and what follows from it for a million rows and for the whole input.

    `spread` is True if the units came from all over the input, and False if from its beginning.
    `total_rows`, `job_seconds` and `job_cost` are None where only reading all rows would tell.
    Costs are those of `threads` cores.
    """

    threads: int
    units: int
    rows: int
    bad: int
    spread: bool
    open_seconds: float
    rows_per_second: float
    million_cost: float | None
    total_rows: int | None
    job_seconds: float | None
    job_cost: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON carries them."""
        return asdict(self)


def estimate(
    model: Scorable,
    source: Source,
    wanted: BatchConfig,
    cpu_hour: float | None,
    seconds: float,
    threads: int | None = None,
    batch_rows: int | None = None,
) -> CostEstimate:
    """Score units of `source` for about `seconds`; `cpu_hour` is the price of a core for an hour.

    INVALID_INPUT if the source has no rows.
    """
    recipe = make_recipe(model, source.schema, wanted)
    job = make_job(model, source, recipe, wanted, model.digest)
    since = time.monotonic()
    scorer = Scoring(model, recipe, job.schema, None, batch_rows).open()
    opened = time.monotonic() - since
    cores = usual_threads(scorer, threads)
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-estimate-") as folder,
        open_sink(SinkRequest(folder, {"format": wanted.format})) as sink,
    ):
        run = start(sink, sink.begin(job), None, RunControl(limit=ErrorLimit(share=1.0)))
        sample = _sample(source, recipe.columns, seconds, max(_MIN_UNITS, 2 * cores))
        totals = run.go(sample, executor_of(scorer, threads))
        took = run.seconds
    if not totals.seen:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{source.name} has no rows")
    pace = totals.seen / took
    total = source.total_rows()
    million = None if cpu_hour is None else cpu_hour * cores * _MILLION / pace / _HOUR
    return CostEstimate(
        threads=cores,
        units=totals.units,
        rows=totals.seen,
        bad=totals.bad,
        spread=isinstance(source, SplittableSource),
        open_seconds=opened,
        rows_per_second=pace,
        million_cost=million,
        total_rows=total,
        job_seconds=None if total is None else total / pace,
        job_cost=None if total is None or million is None else million * total / _MILLION,
    )


def _sample(
    source: Source, columns: Sequence[str], seconds: float, min_units: int
) -> Iterator[Chunk]:
    """Yield units of `source` for `seconds`, and at least `min_units` of them if there are any."""
    end = time.monotonic() + seconds
    for count, chunk in enumerate(_chunks(source, columns), 1):
        yield chunk
        if count >= min_units and time.monotonic() >= end:
            return


def _chunks(source: Source, columns: Sequence[str]) -> Iterator[Chunk]:
    """Yield the units in an order that is always the same, from all over the input if it can be."""
    if not isinstance(source, SplittableSource):
        yield from source.scan(columns, ())
        return
    source.check(columns)
    units = list(source.units())
    for unit in random.Random(0).sample(units, len(units)):  # noqa: S311
        yield source.read(unit, columns)
