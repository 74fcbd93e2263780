"""Score pieces of a unit: columns to tensors, the model, and answers beside the kept columns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from mlctl.bundle.arrays import Arrays
from mlctl.services.batch.answers import (
    NUL,
    digest_column,
    output_column,
    quarantine_table,
    unusable,
)
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.units import ColumnReading, Piece, ScoredPiece, Unit
from mlctl.services.generate.options import AnswerOptions
from mlctl.services.tables.bisect import Scored, score_rows
from mlctl.services.tables.input_columns import InputColumns
from mlctl.services.tables.tensors import Reasons, Tensors, to_tensors
from mlctl.services.tables.values import with_nul

if TYPE_CHECKING:
    from mlctl.services.generate.scorer import TextScorer
    from mlctl.services.layout.pipeline_scorer import PipelineScorer
    from mlctl.services.model.scorer import Scorer

BatchScorer: TypeAlias = "Scorer | PipelineScorer | TextScorer"


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """How rows become answers: everything of a job except the model, the input and the output."""

    feeds: tuple[InputColumns, ...]
    keep: tuple[str, ...] = ()
    filter: Filter | None = None
    forbid_nan: bool = False
    finite_outputs: bool = False
    forbid_nul: bool = False
    reading: ColumnReading = field(default_factory=ColumnReading)
    answers: AnswerOptions = field(default_factory=AnswerOptions)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        inputs = [name for feed in self.feeds for name in feed.columns]
        condition = self.filter.columns if self.filter else ()
        return tuple(dict.fromkeys((*self.keep, *inputs, *condition)))


def run_checked(scorer: BatchScorer, inputs: Arrays) -> dict[str, np.ndarray]:
    """Check and score `inputs`; one row at a time, as online, where rows influence each other."""
    scorer.check(inputs)
    if scorer.joinable:
        return scorer.run(inputs)
    rows = range(len(next(iter(inputs.values()))))
    parts = [
        scorer.run({name: array[row : row + 1] for name, array in inputs.items()}) for row in rows
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class PieceScorer:
    """Scores pieces, from several threads; a model that is not `thread_safe` runs in one at a time.

    `schema` and `quarantine` are the columns of the two results. `max_bad` limits the bad rows of
    one piece (TooManyError).
    """

    def __init__(
        self,
        scorer: BatchScorer,
        plan: ScoringPlan,
        schema: pa.Schema,
        quarantine: pa.Schema,
        max_bad: int | None = None,
    ) -> None:
        self.scorer = scorer
        self._plan = plan
        self._schema = schema
        self._quarantine = quarantine
        self._max_bad = max_bad
        self._turn = contextlib.nullcontext() if scorer.thread_safe else threading.Lock()

    def score(self, unit: Unit, piece: Piece) -> ScoredPiece:
        """Return the answers in the order of the rows, and the bad rows."""
        plan, table = self._plan, piece.table
        rows = np.asarray(piece.numbers, np.int64)
        if plan.filter is not None:
            index = "mlctl index"
            table = plan.filter.apply(table.append_column(index, pa.array(np.arange(len(rows)))))
            rows = rows[table[index].to_numpy()]
            table = table.drop_columns([index])
        groups, reasons = to_tensors(table, plan.feeds, forbid_nan=plan.forbid_nan)
        unfit = with_nul(table.select(plan.keep)) if plan.forbid_nul else {}
        call = partial(run_checked, self.scorer)
        with self._turn:
            runs = [score_rows(call, group.arrays, self._max_bad) for group in groups]
        scored = [
            self._usable(group, run, reasons, unfit)
            for group, run in zip(groups, runs, strict=True)
        ]
        answers = self._answers(table, [each for each in scored if len(each.rows)])
        bad = quarantine_table(self._quarantine, unit, piece, table, reasons, rows)
        return ScoredPiece(answers, bad, piece.table.num_rows - table.num_rows)

    def _usable(
        self, group: Tensors, scored: Scored, reasons: Reasons, unfit: Mapping[int, str]
    ) -> Scored:
        """Return one group's answers with rows counted in the table; adds to `reasons`."""
        rows = group.rows[scored.rows]
        reasons |= {int(group.rows[index]): why for index, why in scored.reasons.items()}
        if scored.outputs is None:
            return Scored(None, rows, {})
        wrong = unusable(
            scored.outputs, finite=self._plan.finite_outputs, nul=not self._plan.forbid_nul
        )
        for index, row in enumerate(rows.tolist()) if unfit else ():
            if row in unfit:
                wrong[index] = f"column {unfit[row]!r} {NUL}"
        if not wrong:
            return Scored(scored.outputs, rows, {})
        reasons |= {int(rows[index]): why for index, why in wrong.items()}
        good = np.delete(np.arange(len(rows)), list(wrong))
        return Scored({n: a[good] for n, a in scored.outputs.items()}, rows[good], {})

    def _answers(self, table: pa.Table, scored: list[Scored]) -> pa.Table:
        tables = [self._table(table, each) for each in scored]
        if not tables:
            return self._schema.empty_table()
        if len(tables) == 1:
            return tables[0]
        order = np.argsort(np.concatenate([each.rows for each in scored]), kind="stable")
        return pa.concat_tables(tables).take(order)

    def _table(self, table: pa.Table, scored: Scored) -> pa.Table:
        assert scored.outputs is not None
        kept = table.select(self._plan.keep)
        count = len(scored.rows)
        if count != table.num_rows:
            kept = kept.take(scored.rows)
        outputs = [
            output_column(spec, scored.outputs[spec.name]) for spec in self.scorer.signature.outputs
        ]
        digest = digest_column(self.scorer.digest, count)
        return pa.table([*kept.columns, *outputs, digest], schema=self._schema)
