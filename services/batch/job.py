"""A batch job: the request, checked against model and input before any row is scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.answers import quarantine_schema, require_columns, result_schema
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.progress import BatchPhase, Run, RunControl
from mlctl.services.batch.scoring import ScoringPlan
from mlctl.services.batch.units import BatchTotals, ColumnReading, Job, JobPlan, Sink, Source, Unit
from mlctl.services.batch.worker import Scoring, is_language_model
from mlctl.services.generate.options import AnswerOptions
from mlctl.services.layout.scorable import Scorable, check_batched
from mlctl.services.tables.bisect import TooManyError
from mlctl.services.tables.input_columns import column_types, find_feeds, parse_map

UNIT_ROWS = 100_000
# As one of the columns to keep: all columns of the input.
KEEP_ALL = "*"
# Commits units with threads of this process (`local_executor`) or on a cluster (`ray_executor`);
# TooManyError for one with too many bad rows.
Executor = Callable[[Scoring, Run, Sequence[Unit]], None]


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Settings that decide the answers, as the user wrote them; `answers` of a language model."""

    map: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    filter: str | None = None
    partition_by: tuple[str, ...] = ()
    format: str = "parquet"
    unit_rows: int = UNIT_ROWS
    forbid_nan: bool = False
    finite_outputs: bool = False
    answers: AnswerOptions | None = None


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of a run: `totals` over all runs, `rows` and `seconds` of this one."""

    totals: BatchTotals
    rows: int
    seconds: float
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """Return the summary that is written beside the answers, and that --json prints."""
        return {
            "digest": self.digest,
            **asdict(self.totals),
            "run_rows": self.rows,
            "run_seconds": round(self.seconds, 3),
        }


def make_plan(model: Scorable, source: Source, config: BatchConfig) -> tuple[ScoringPlan, JobPlan]:
    """Return how columns become answers, and the units; INVALID_INPUT for columns that do not fit.

    Columns that feed inputs are read as the types of these, whatever their first rows hold.
    """
    check_batched(model)
    condition = Filter(config.filter) if config.filter else None
    schema = source.schema
    if source.only_text:
        schema = pa.schema([(name, pa.string()) for name in schema.names])
    feeds = find_feeds(schema, model.signature, parse_map(config.map), model.missing)
    if source.open_columns:
        feeds = tuple(each if each.columns else each.from_own_column() for each in feeds)
    every = KEEP_ALL in config.keep
    types = column_types(feeds, schema)
    names = (*schema.names, *(name for name in types if name not in schema.names))
    keep = tuple(dict.fromkeys((*(names if every else config.keep), *config.partition_by)))
    require_columns(names, model.signature, keep)
    if condition is not None:
        condition.check_names(names)
    answers = config.answers
    if answers is not None and not is_language_model(model):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"model {model.name!r} is no language model, and takes none of --max-tokens, "
            "--temperature and --seed",
        )
    plan = ScoringPlan(
        feeds,
        keep,
        condition,
        config.forbid_nan,
        config.finite_outputs,
        reading=ColumnReading(types, every),
        answers=answers or AnswerOptions(),
    )
    units = source.plan(plan.columns, condition, plan.reading)
    if condition is not None:
        condition.check(source.schema)
    return plan, units


def make_job(model: Scorable, source: Source, plan: ScoringPlan, config: BatchConfig) -> Job:
    """Return the description of the job for its sink."""
    fingerprint = {f"input {name}": value for name, value in source.identity().items()}
    fingerprint["model digest"] = model.digest
    settings = asdict(config)
    fingerprint |= {name.replace("_", " "): json.dumps(settings[name]) for name in settings}
    return Job(
        fingerprint,
        result_schema(model.signature, source.schema, plan.keep),
        quarantine_schema(source.schema, plan.columns),
        config.partition_by,
        plan.keep,
        {"input": source.name},
        model.signature.outputs,
    )


def run_job(
    model: Scorable,
    source: Source,
    sink: Sink,
    config: BatchConfig,
    execute: Executor,
    control: RunControl,
    batch_rows: int | None = None,
    piece_rows: int | None = None,
) -> BatchReport:
    """Commit every unit without a marker and finish the job; at once if it is finished."""
    plan, units = make_plan(model, source, config)
    job = make_job(model, source, plan, config)
    try:
        markers, finished = sink.begin(job, restart=control.restart)
        totals = BatchTotals.of(markers.values(), units.pruned)
        waiting = [unit for unit in units.units if unit.id not in markers]
        if finished and not waiting:
            return BatchReport(totals, 0, 0.0, model.digest)
        run = Run(control, totals, units.rows)
        if waiting:
            limit = None if units.rows is None else control.limit.max_bad(units.rows, 0)
            plan = replace(plan, forbid_nul=sink.forbids_nul)
            scoring = Scoring(
                model, source, sink, plan, job.schema, job.quarantine, limit, batch_rows, piece_rows
            )
            try:
                execute(scoring, run, waiting)
            except TooManyError as error:
                run.check_unit(error.reasons)
                raise
        run.total = run.totals.seen if run.total is None else run.total
        run.check()
        report = BatchReport(run.totals, run.rows, run.seconds, model.digest)
        run.patiently(lambda: sink.finish(report.as_dict()))
        run.report(BatchPhase.FINISHED)
        return report
    finally:
        sink.close()


def column_list(texts: Sequence[str]) -> tuple[str, ...]:
    """Return `id,ts` and repeated options as one tuple of names."""
    return tuple(name for text in texts for name in text.split(",") if name)
