"""Scoring a unit: columns to tensors, the scorer, and the answers back beside kept columns.

In three steps, so that others can be at work before and after the one that has the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bundle.clock import Clock, SystemClock
from services.batch.answers import NUL, numbers, output_column, text_column, unusable
from services.batch.base import BadRow, Chunk, UnitResult
from services.batch.filters import Filter
from services.runtime.bisect import Arrays, Scored, score_rows
from services.runtime.tabular.input_columns import InputColumns
from services.runtime.tabular.tensors import Reasons, Tensors, to_tensors
from services.runtime.tabular.values import row_as_json, with_nul

if TYPE_CHECKING:
    import pyarrow as pa

    from services.runtime.pipeline_scorer import PipelineScorer
    from services.runtime.scorer import Scorer


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """How rows become answers: everything of a job but the model, the input and the output."""

    feeds: tuple[InputColumns, ...]
    keep: tuple[str, ...] = ()
    filter: Filter | None = None
    forbid_nan: bool = False
    finite_outputs: bool = False
    forbid_nul: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        fed = [name for feed in self.feeds for name in feed.columns]
        seen = self.filter.columns if self.filter else ()
        return tuple(dict.fromkeys((*self.keep, *fed, *seen)))


@dataclass(frozen=True, slots=True)
class PreparedUnit:
    """A unit's tensors: of the `picked` rows, if there is a filter.

    `unfit` are the rows of the table for which there is no place, with the column at fault.
    """

    chunk: Chunk
    table: pa.Table
    picked: np.ndarray | None
    groups: list[Tensors]
    reasons: Reasons
    unfit: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Ran:
    """What the model made of each group."""

    prepared: PreparedUnit
    pieces: list[Scored]


def run_checked(scorer: Scorer | PipelineScorer, inputs: Arrays) -> dict[str, np.ndarray]:
    """Check and score `inputs`; one row at a time, as online, where rows influence each other."""
    scorer.check(inputs)
    if scorer.joinable:
        return scorer.run(inputs)
    rows = range(len(next(iter(inputs.values()))))
    parts = [
        scorer.run({name: array[row : row + 1] for name, array in inputs.items()}) for row in rows
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, slots=True)
class UnitScorer:
    """Scores one unit after the other; for one thread at a time unless the scorer is `shared`.

    So are `prepare`, `run` and `finish`, but each may have a thread of its own. `schema` is
    result_schema's. `most_bad` bad rows in a unit are one too many for a job.
    """

    scorer: Scorer | PipelineScorer
    recipe: ScoringPlan
    schema: pa.Schema
    most_bad: int | None = None
    clock: Clock = field(default_factory=SystemClock)

    def score(self, chunk: Chunk) -> UnitResult:
        """The unit's answers in the order of its rows, and its bad rows in theirs."""
        return self.finish(self.run(self.prepare(chunk)))

    def prepare(self, chunk: Chunk) -> PreparedUnit:
        """The unit's tensors."""
        table = chunk.table
        picked = None if self.recipe.filter is None else self.recipe.filter.keep(table)
        if picked is not None:
            table = table.take(picked)
        groups, reasons = to_tensors(table, self.recipe.feeds, forbid_nan=self.recipe.forbid_nan)
        unfit = with_nul(table.select(self.recipe.keep)) if self.recipe.forbid_nul else {}
        return PreparedUnit(chunk, table, picked, groups, reasons, unfit)

    def run(self, prepared: PreparedUnit) -> Ran:
        """Have the model answer: the only step that asks it."""
        call = partial(run_checked, self.scorer)
        pieces = [score_rows(call, group.arrays, self.most_bad) for group in prepared.groups]
        return Ran(prepared, pieces)

    def finish(self, ran: Ran) -> UnitResult:
        """The answers as a table, and the bad rows."""
        prepared, reasons = ran.prepared, dict(ran.prepared.reasons)
        groups = zip(prepared.groups, ran.pieces, strict=True)
        pieces = [self._usable(group, piece, reasons, prepared.unfit) for group, piece in groups]
        chunk, table, picked = prepared.chunk, prepared.table, prepared.picked
        answers = self._answers(table, [piece for piece in pieces if len(piece.rows)])
        bad = [
            BadRow(
                chunk.number(index if picked is None else int(picked[index])),
                reason,
                row_as_json(table, index),
            )
            for index, reason in reasons.items()
        ]
        bad = sorted((*chunk.rejected, *bad), key=lambda row: row.row)
        skipped = chunk.table.num_rows - table.num_rows
        return UnitResult(chunk.unit, answers, tuple(bad), skipped)

    def _usable(
        self, group: Tensors, scored: Scored, reasons: Reasons, unfit: Mapping[int, str]
    ) -> Scored:
        """One group's answers, with rows counted in the table; adds to `reasons`."""
        rows = group.rows[scored.rows]
        reasons |= {int(group.rows[index]): why for index, why in scored.reasons.items()}
        if scored.outputs is None:
            return Scored(None, rows, {})
        wrong = unusable(
            scored.outputs, finite=self.recipe.finite_outputs, nul=not self.recipe.forbid_nul
        )
        if unfit:
            told = ((index, unfit.get(row)) for index, row in enumerate(rows.tolist()))
            wrong |= {index: f"column {name!r} {NUL}" for index, name in told if name}
        if not wrong:
            return Scored(scored.outputs, rows, {})
        reasons |= {int(rows[index]): why for index, why in wrong.items()}
        good = np.delete(np.arange(len(rows)), list(wrong))
        return Scored({n: a[good] for n, a in scored.outputs.items()}, rows[good], {})

    def _answers(self, table: pa.Table, pieces: list[Scored]) -> pa.Table:
        import pyarrow as pa

        tables = [self._table(table, piece) for piece in pieces]
        if not tables:
            return self.schema.empty_table()
        if len(tables) == 1:
            return tables[0]
        order = np.argsort(np.concatenate([piece.rows for piece in pieces]), kind="stable")
        return pa.concat_tables(tables).take(order)

    def _table(self, table: pa.Table, piece: Scored) -> pa.Table:
        import pyarrow as pa

        assert piece.outputs is not None
        kept = table.select(self.recipe.keep)
        count = len(piece.rows)
        if count != table.num_rows:
            kept = kept.take(piece.rows)
        outputs = [
            output_column(spec, piece.outputs[spec.name]) for spec in self.scorer.signature.outputs
        ]
        digest = pa.DictionaryArray.from_arrays(
            numbers(np.zeros(count, np.int32)), text_column(self.scorer.digest)
        )
        now = np.full(count, int(self.clock.wall() * 1e6), np.int64)
        scored_at = numbers(now, pa.timestamp("us", tz="UTC"))
        return pa.table([*kept.columns, *outputs, digest, scored_at], schema=self.schema)
