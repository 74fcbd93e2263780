"""What a job would take and cost: some of its units, from all over the input, done as it would.

Their answers are committed to a temporary folder of Parquet; another place takes its own time.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

from bundle.clock import SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Chunk, Sink, SinkRequest, Source, SplittableSource, UnitResult
from services.batch.engine import grouped
from services.batch.executors.local import LocalExecutor
from services.batch.job import Scoring, Wanted, make_job, make_recipe, usual_threads
from services.batch.model import Scorable
from services.batch.sinks import open_sink

_MILLION = 1e6
_HOUR = 3600.0
# Fewer units say nothing of how units differ.
_LEAST_UNITS = 4
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds that a stage took for some rows."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with its 95 % interval, which needs more than one measurement."""

    middle: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Range:
        """All three multiplied."""
        low, high = (None if each is None else each * factor for each in (self.low, self.high))
        return Range(self.middle * factor, low, high)


@dataclass(frozen=True, slots=True)
class Prices:
    """What an hour costs: of one core for a batch, of a server that answers `online_rps` rows/s."""

    cpu_hour: float | None = None
    online_hour: float | None = None
    online_rps: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The figures; seconds and costs are for a million rows, those called `job_` for all of them.

    `spread` tells that the units came from all over the input, not from its beginning.
    `stages` overlap, as far as there are cores. `cpu_seconds` are those of the whole process.
    Costs are for as many cores as `threads`.
    """

    threads: int
    units: int
    rows: int
    bad: int
    spread: bool
    total_rows: int | None
    stages: Mapping[str, Range]
    open_seconds: float
    cpu_seconds: float
    seconds: Range
    job_seconds: Range | None
    batch_cost: Range | None
    job_cost: Range | None
    online_cost: float | None

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON carries them."""
        return asdict(self)


def spread_order(count: int) -> Iterator[int]:
    """0 to count - 1 so that each beginning is spread evenly over all of them."""
    bits = max(1, (count - 1).bit_length())
    for index in range(1 << bits):
        place = int(format(index, f"0{bits}b")[::-1], 2)
        if place < count:
            yield place


def predict(samples: Sequence[Sample]) -> Range:
    """Seconds for a million rows, by the ratio of sums.

    The interval is of how the samples differ, with Student's quantile; that the machine may be
    busier another time is not in it.
    """
    rows, count = sum(each.rows for each in samples), len(samples)
    middle = sum(each.seconds for each in samples) / rows
    if count == 1:
        return Range(middle).times(_MILLION)
    residuals = sum((each.seconds - middle * each.rows) ** 2 for each in samples)
    error = math.sqrt(residuals / (count - 1) / count) / (rows / count)
    half = student(count - 1) * error
    return Range(middle, max(0.0, middle - half), middle + half).times(_MILLION)


def student(freedom: int, confidence: float = _CONFIDENCE) -> float:
    """Student's two-sided quantile by the expansion around the normal one.

    Within 2 % from three degrees of freedom on; below that too small, so it is doubled.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    found = z + first / freedom + second / freedom**2 + third / freedom**3
    return found if freedom > 2 else 2 * found


@dataclass(slots=True)
class Sampler:
    """Does units for about `seconds`, with the threads of a real job, and times each stage."""

    source: Source
    columns: Sequence[str]
    score: Callable[[Chunk], UnitResult]
    sink: Sink
    threads: int
    seconds: float
    spread: bool = field(init=False)
    bad: int = field(init=False, default=0)
    read: list[Sample] = field(init=False, default_factory=list)
    scored: list[Sample] = field(init=False, default_factory=list)
    committed: list[Sample] = field(init=False, default_factory=list)
    passed: list[Sample] = field(init=False, default_factory=list)
    _since: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.spread = isinstance(self.source, SplittableSource)

    def run(self) -> None:
        """Read, score and commit; INVALID_INPUT if there are no rows."""
        results = LocalExecutor(self._timed, self.threads).results(self._until_late())
        self._since = time.perf_counter()
        with closing(results):
            for group in grouped(self._watched(results), self.sink.commit_rows, SystemClock()):
                since = time.perf_counter()
                self.sink.commit(group)
                self.committed.append(Sample(sum(map(_seen, group)), time.perf_counter() - since))
        if not self.rows:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{self.source.name} has no rows")
        # The last commit came after the last unit.
        self.passed.append(Sample(0, time.perf_counter() - self._since))

    @property
    def rows(self) -> int:
        """The rows that were done."""
        return sum(each.rows for each in self.committed)

    def stages(self) -> dict[str, Range]:
        """Seconds that a million rows take in each stage, which overlap."""
        shared = [Sample(each.rows, each.seconds / self.threads) for each in self.scored]
        named = {"reading": self.read, "scoring": shared, "writing": self.committed}
        return {name: predict(samples) for name, samples in named.items()}

    def _watched(self, results: Iterable[UnitResult]) -> Iterator[UnitResult]:
        """The results; how long each kept us waiting, commits before it included, is noted."""
        for result in results:
            now = time.perf_counter()
            self.passed.append(Sample(_seen(result), now - self._since))
            self._since = now
            self.bad += len(result.bad)
            yield result

    def _until_late(self) -> Iterator[Chunk]:
        end = time.monotonic() + self.seconds
        least = max(_LEAST_UNITS, 2 * self.threads)
        chunks = iter(self._chunks())
        while len(self.read) < least or time.monotonic() < end:
            since = time.perf_counter()
            chunk = next(chunks, None)
            if chunk is None:
                return
            rows = chunk.table.num_rows + len(chunk.rejected)
            self.read.append(Sample(rows, time.perf_counter() - since))
            yield chunk

    def _chunks(self) -> Iterable[Chunk]:
        if not isinstance(self.source, SplittableSource):
            return self.source.scan(self.columns, frozenset())
        units, source = list(self.source.units()), self.source
        return (source.read(units[index], self.columns) for index in spread_order(len(units)))

    def _timed(self, chunk: Chunk) -> UnitResult:
        since = time.perf_counter()
        result = self.score(chunk)
        self.scored.append(Sample(_seen(result), time.perf_counter() - since))
        return result


def _seen(result: UnitResult) -> int:
    answers: int = result.table.num_rows
    return answers + len(result.bad) + result.skipped


def estimate(
    model: Scorable,
    source: Source,
    wanted: Wanted,
    prices: Prices,
    seconds: float,
    threads: int | None = None,
    batch_rows: int | None = None,
) -> Estimate:
    """Do units of `source` for about `seconds`, and say what all of it would take."""
    recipe = make_recipe(model, source.schema, wanted)
    job = make_job(model, source, recipe, wanted, model.digest)
    since = time.monotonic()
    scorer = Scoring(model, recipe, job.schema, None, batch_rows).open()
    opened = time.monotonic() - since
    count = usual_threads(scorer, threads)
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-estimate-") as folder,
        open_sink(SinkRequest(folder, {"format": wanted.format})) as sink,
    ):
        sink.begin(job)
        sampler = Sampler(source, recipe.columns, scorer.score, sink, count, seconds)
        used = time.process_time()
        sampler.run()
        used = time.process_time() - used
    return _told(sampler, source.total_rows(), prices, opened, used)


def _told(
    sampler: Sampler, total: int | None, prices: Prices, opened: float, used: float
) -> Estimate:
    million = predict(sampler.passed)
    job = None if total is None else million.times(total / _MILLION)
    hourly = None if prices.cpu_hour is None else prices.cpu_hour * sampler.threads / _HOUR
    return Estimate(
        threads=sampler.threads,
        units=len(sampler.scored),
        rows=sampler.rows,
        bad=sampler.bad,
        spread=sampler.spread,
        total_rows=total,
        stages=sampler.stages(),
        open_seconds=opened,
        cpu_seconds=used / sampler.rows * _MILLION,
        seconds=million,
        job_seconds=job,
        batch_cost=None if hourly is None else million.times(hourly),
        job_cost=None if hourly is None or job is None else job.times(hourly),
        online_cost=online_cost(prices),
    )


def online_cost(prices: Prices) -> float | None:
    """What a million rows cost on a server that is never idle; None without its figures."""
    if prices.online_hour is None or prices.online_rps is None:
        return None
    return prices.online_hour / _HOUR * _MILLION / prices.online_rps
