"""A batch job: what was asked for, checked against model and input before any row is scored."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.batch.answers import result_schema
from services.batch.base import (
    BatchTotals,
    Chunk,
    Job,
    JobProgress,
    Sink,
    Source,
    SplittableSource,
    TextSink,
)
from services.batch.engine import BatchEvent, Executor, ReadingExecutor, Run
from services.batch.filters import Filter
from services.batch.limits import ErrorLimit
from services.batch.scoring import ScoringPlan, UnitScorer
from services.runtime.scorable import Scorable, check_batched, open_scorable
from services.runtime.tabular.input_columns import find_feeds, parse_map

if TYPE_CHECKING:
    import pyarrow as pa

# Makes the executor that scores; called only if there is something to score.
MakeExecutor = Callable[["Scoring"], Executor[Chunk]]


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """What decides the answers, as the user wrote it."""

    map: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    filter: str | None = None
    partition_by: tuple[str, ...] = ()
    format: str = "parquet"
    unit_rows: int = 20_000
    forbid_nan: bool = False
    finite_outputs: bool = False

    def as_text(self) -> str:
        """As JSON, for `from_text`."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_text(cls, text: str) -> BatchConfig:
        """What `as_text` wrote."""
        document = json.loads(text)
        for name in ("map", "keep", "partition_by"):
            document[name] = tuple(document[name])
        return cls(**document)


@dataclass(frozen=True, slots=True)
class RunControl:
    """What does not decide the answers: limits, patience in seconds, who watches, who stops it."""

    limit: ErrorLimit = field(default_factory=lambda: ErrorLimit(share=0.01))
    patience: float = 300.0
    watch: Callable[[BatchEvent], None] = lambda _event: None
    stop: threading.Event = field(default_factory=threading.Event)
    restart: bool = False
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Everything that an executor needs to score; other processes can be sent all of it."""

    model: Scorable
    recipe: ScoringPlan
    schema: pa.Schema
    most_bad: int | None = None
    batch_rows: int | None = None

    def open(self) -> UnitScorer:
        """The scorer of units, with the model loaded."""
        scorer = open_scorable(self.model, self.batch_rows)
        return UnitScorer(scorer, self.recipe, self.schema, self.most_bad)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """How a run ended: `totals` over all runs, `rows` and `seconds` of this one."""

    totals: BatchTotals
    rows: int
    seconds: float
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """The summary that is written beside the answers, and that --json prints."""
        return {
            "digest": self.digest,
            "units": self.totals.units,
            "rows": self.totals.rows,
            "bad": self.totals.bad,
            "skipped": self.totals.skipped,
            "run_rows": self.rows,
            "run_seconds": round(self.seconds, 3),
        }


def make_recipe(model: Scorable, schema: pa.Schema, wanted: BatchConfig) -> ScoringPlan:
    """How the columns of `schema` become answers; INVALID_INPUT for columns that do not fit."""
    check_batched(model)
    condition = Filter(wanted.filter) if wanted.filter else None
    for name in condition.columns if condition else ():
        if name not in schema.names:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--filter: there is no column {name!r}; there are {', '.join(schema.names[:20])}",
            )
    feeds = find_feeds(schema, model.signature, parse_map(wanted.map))
    keep = tuple(dict.fromkeys((*wanted.keep, *wanted.partition_by)))
    return ScoringPlan(feeds, keep, condition, wanted.forbid_nan, wanted.finite_outputs)


def fitted(recipe: ScoringPlan, sink: Sink) -> ScoringPlan:
    """The recipe with what `sink` has no place for."""
    return replace(recipe, forbid_nul=isinstance(sink, TextSink) and sink.forbids_nul)


def make_job(
    model: Scorable, source: Source, recipe: ScoringPlan, wanted: BatchConfig, bento: str
) -> Job:
    """What the sink is told; `bento` is how the model can be found again."""
    fingerprint = {f"input {name}": value for name, value in source.identity().items()}
    fingerprint["model digest"] = model.digest
    settings = json.loads(wanted.as_text())
    fingerprint |= {name.replace("_", " "): json.dumps(settings[name]) for name in settings}
    schema = result_schema(model.signature, source.schema, recipe.keep)
    import pyarrow as pa

    read = pa.schema([source.schema.field(name) for name in recipe.columns])
    facts = {"bento": bento, "input": source.name, "wanted": wanted.as_text()}
    return Job(fingerprint, schema, read, facts, wanted.partition_by)


def run_job(
    model: Scorable,
    bento: str,
    source: Source,
    sink: Sink,
    wanted: BatchConfig,
    make_executor: MakeExecutor,
    control: RunControl,
    batch_rows: int | None = None,
) -> BatchReport:
    """Score what is not committed yet, and finish the job; at once if it was finished before."""
    recipe = make_recipe(model, source.schema, wanted)
    job = make_job(model, source, recipe, wanted, bento)
    with sink:
        progress = sink.begin(job, restart=control.restart)
        if progress.finished:
            return BatchReport(progress.totals, 0, 0.0, model.digest)
        total = source.total_rows()
        most = None if total is None else control.limit.most(total, 0)
        scoring = Scoring(model, fitted(recipe, sink), job.schema, most, batch_rows)
        run = start(sink, progress, total, control)
        _go(run, source, recipe.columns, make_executor(scoring))
        report = BatchReport(
            run.totals, run.totals.seen - progress.totals.seen, run.seconds, model.digest
        )
        run.finish(report.as_dict())
        return report


def _go(run: Run, source: Source, columns: Sequence[str], executor: Executor[Chunk]) -> None:
    """Score what is left; the executor reads the rows itself if both sides can do that."""
    done = run.progress.done
    if isinstance(source, SplittableSource) and isinstance(executor, ReadingExecutor):
        source.check(columns)
        left = (unit for unit in source.units() if unit.id not in done)
        run.go(left, executor.reading(source, columns))
    else:
        run.read(source, columns, executor)


def start(sink: Sink, progress: JobProgress, total: int | None, control: RunControl) -> Run:
    """A run with the control's limits."""
    return Run(
        sink,
        progress,
        total,
        control.limit,
        control.watch,
        control.stop,
        control.patience,
        control.clock,
    )


def local_executor(threads: int | None) -> MakeExecutor:
    """Threads on one session: as many as cores, but one where the model takes no more."""

    def make(scoring: Scoring) -> Executor[Chunk]:
        return executor_of(scoring.open(), threads)

    return make


def executor_of(scorer: UnitScorer, threads: int | None) -> Executor[Chunk]:
    """Whole units in each thread; for a device a thread for each step, so that it never waits.

    On the CPU a transform holds Python's lock for most of its time: with a thread for each step
    it was 20 % slower.
    """
    from services.batch.local_executor import LocalExecutor
    from services.batch.pipeline_executor import PipelineExecutor

    if scorer.scorer.provider != "cpu":
        return PipelineExecutor((scorer.prepare, scorer.run, scorer.finish))
    return LocalExecutor(scorer.score, usual_threads(scorer, threads))


def usual_threads(scorer: UnitScorer, wanted: int | None) -> int:
    """How many threads score here: one where a model takes no more."""
    return (wanted or len(os.sched_getaffinity(0))) if scorer.scorer.thread_safe else 1


def column_list(texts: Sequence[str]) -> tuple[str, ...]:
    """`id,ts` and repeated options as one list of names."""
    return tuple(name for text in texts for name in text.split(",") if name)
