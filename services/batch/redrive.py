"""Redrive: the rows in quarantine are scored again; those that pass leave it for the answers.

A row's answer and its leaving are one commit, so that it is never in both places or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from services.batch.answers import result_schema
from services.batch.base import BadRow, Chunk, Quarantined, QuarantineSink, Sink, Unit, UnitResult
from services.batch.engine import Executor
from services.batch.job import (
    BatchConfig,
    BatchReport,
    MakeExecutor,
    RunControl,
    Scoring,
    fitted,
    make_recipe,
    start,
)
from services.batch.limits import ErrorLimit
from services.runtime.scorable import Scorable
from services.runtime.tabular.values import rows_from_json

if TYPE_CHECKING:
    import pyarrow as pa

_UNIT_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Redriven:
    """How a redrive ended: rows that passed, and rows that stay in quarantine."""

    passed: int
    left: int
    report: BatchReport


def redrive(
    sink: Sink,
    find: Callable[[str], Scorable],
    bento: str | None,
    make_executor: MakeExecutor,
    control: RunControl,
) -> Redriven:
    """Score the quarantine of `sink` again, with the job's own model or the one of `bento`.

    NOT_FOUND if nothing was ever committed there, INVALID_INPUT for a model whose answers
    have other columns, or for a sink that keeps no quarantine. A job that was not complete is
    not complete after it either.
    """
    if not isinstance(sink, QuarantineSink):
        raise MlctlError(ErrorCode.INVALID_INPUT, "this kind of output cannot be redriven")
    sink.require_job()  # to enter it would make it
    with sink:
        job, progress = sink.stored()
        model = find(bento or job.facts["bento"])
        wanted = BatchConfig.from_text(job.facts["wanted"])
        # The filter let these rows pass, or else they would not be here.
        recipe = replace(make_recipe(model, job.input_schema, wanted), filter=None)
        if result_schema(model.signature, job.input_schema, recipe.keep) != job.schema:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the outputs of that model are not those that are stored",
                "Give a version of the same model, or score the input into another output.",
            )
        rows = list(sink.quarantined())
        limited = replace(control, limit=ErrorLimit(count=len(rows)))
        run = start(sink, progress, None, limited)
        if rows:
            keys: dict[str, list[tuple[str, int]]] = {}
            scoring = Scoring(model, fitted(recipe, sink), job.schema)
            chunks = _chunks(rows, job.input_schema, int(control.clock.wall() * 1e6), keys)
            run.go(chunks, _Resolving(make_executor(scoring), keys))
        passed = progress.totals.bad - run.totals.bad
        report = BatchReport(run.totals, passed, run.seconds, model.digest)
        if progress.finished:
            run.finish(report.as_dict())
        return Redriven(passed, run.totals.bad, report)


class _Resolving:
    """An executor whose results say which rows leave the quarantine; the others stay as they are.

    `keys` are those of each unit's rows, in their order.
    """

    def __init__(self, inner: Executor[Chunk], keys: dict[str, list[tuple[str, int]]]) -> None:
        self._inner = inner
        self._keys = keys

    def results(self, chunks: Iterable[Chunk]) -> Generator[UnitResult, None, None]:
        for result in self._inner.results(chunks):
            bad = {row.row for row in result.bad}
            keys = self._keys.pop(result.unit.id)
            passed = tuple(key for index, key in enumerate(keys) if index not in bad)
            yield replace(result, bad=(), resolved=passed)


def _chunks(
    rows: Sequence[Quarantined],
    schema: pa.Schema,
    stamp: int,
    keys: dict[str, list[tuple[str, int]]],
) -> Iterator[Chunk]:
    """The rows in units that no other run has; adds their keys to `keys`."""
    for start_row in range(0, len(rows), _UNIT_ROWS):
        part = rows[start_row : start_row + _UNIT_ROWS]
        unit = Unit(f"redrive-{stamp:016}-{start_row:08}", "the quarantine", 0, len(part))
        keys[unit.id] = [(each.unit, each.bad.row) for each in part]
        yield _chunk(unit, [each.bad for each in part], schema)


def _chunk(unit: Unit, rows: Sequence[BadRow], schema: pa.Schema) -> Chunk:
    """The rows as a table; those with a value that is not of its column's type stay bad ones."""
    table = _restored(rows, schema)
    if table is not None:
        return Chunk(unit, table)
    fits = [_restored([row], schema) is not None for row in rows]
    good = [index for index, each in enumerate(fits) if each]
    rejected = (
        BadRow(index, row.reason, row.values) for index, row in enumerate(rows) if not fits[index]
    )
    table = rows_from_json([rows[index].values for index in good], schema)
    return Chunk(unit, table, tuple(rejected), good)


def _restored(rows: Sequence[BadRow], schema: pa.Schema) -> pa.Table | None:
    import pyarrow as pa

    try:
        return rows_from_json([row.values for row in rows], schema)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
