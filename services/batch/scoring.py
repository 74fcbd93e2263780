"""Scoring a unit: columns to tensors, the scorer, and the answers back beside kept columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.batch.base import (
    DIGEST_COLUMN,
    SCORED_AT_COLUMN,
    BadRow,
    Chunk,
    UnitResult,
)
from services.batch.bisect import Scored, score_rows
from services.batch.feeds import Feed
from services.batch.filters import Filter
from services.batch.tensors import Reasons, Tensors, to_tensors
from services.batch.values import row_as_json, with_nul

if TYPE_CHECKING:
    import pyarrow as pa

    from services.scorer import Scorer


_NUL = "has a NUL character, for which the output has no place"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How rows become answers: everything of a job but the model, the input and the output."""

    feeds: tuple[Feed, ...]
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


def result_schema(signature: Signature, source: pa.Schema, keep: Sequence[str]) -> pa.Schema:
    """The columns of the answers: those kept, the outputs, the digest and the time.

    INVALID_INPUT for a column that is not there, or whose name an output has as well.
    """
    import pyarrow as pa

    taken = {spec.name for spec in signature.outputs} | {DIGEST_COLUMN, SCORED_AT_COLUMN}
    for name in keep:
        if name not in source.names:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: there is no such column; there are {', '.join(source.names[:20])}",
            )
        if name in taken:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--keep {name}: an output has that name as well",
                "Leave it out, or rename the column in the input.",
            )
    return pa.schema(
        [
            *(source.field(name) for name in keep),
            *(pa.field(spec.name, column_type(spec)) for spec in signature.outputs),
            pa.field(DIGEST_COLUMN, pa.dictionary(pa.int32(), pa.string())),
            pa.field(SCORED_AT_COLUMN, pa.timestamp("us", tz="UTC")),
        ]
    )


@dataclass(frozen=True, slots=True)
class UnitScorer:
    """Scores one unit after the other; for one thread at a time unless the scorer is `shared`.

    `schema` is result_schema's. `most_bad` bad rows in a unit are one too many for a job.
    """

    scorer: Scorer
    recipe: Recipe
    schema: pa.Schema
    most_bad: int | None = None
    clock: Clock = field(default_factory=SystemClock)

    def score(self, chunk: Chunk) -> UnitResult:
        """The unit's answers in the order of its rows, and its bad rows in theirs."""
        table = chunk.table
        picked = None if self.recipe.filter is None else self.recipe.filter.keep(table)
        if picked is not None:
            table = table.take(picked)
        groups, reasons = to_tensors(table, self.recipe.feeds, forbid_nan=self.recipe.forbid_nan)
        unfit = with_nul(table.select(self.recipe.keep)) if self.recipe.forbid_nul else {}
        pieces = [self._run(group, reasons, unfit) for group in groups]
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

    def _run(self, group: Tensors, reasons: Reasons, unfit: Mapping[int, str]) -> Scored:
        """One group's answers, with rows counted in the table; adds to `reasons`.

        `unfit` are the rows of the table for which there is no place, with the column at fault.
        """
        scored = score_rows(self._call, group.arrays, self.most_bad)
        rows = group.rows[scored.rows]
        reasons |= {int(group.rows[index]): why for index, why in scored.reasons.items()}
        if scored.outputs is None:
            return Scored(None, rows, {})
        wrong = _unusable(
            scored.outputs, finite=self.recipe.finite_outputs, nul=not self.recipe.forbid_nul
        )
        if unfit:
            told = ((index, unfit.get(row)) for index, row in enumerate(rows.tolist()))
            wrong |= {index: f"column {name!r} {_NUL}" for index, name in told if name}
        if not wrong:
            return Scored(scored.outputs, rows, {})
        reasons |= {int(rows[index]): why for index, why in wrong.items()}
        good = np.delete(np.arange(len(rows)), list(wrong))
        return Scored({n: a[good] for n, a in scored.outputs.items()}, rows[good], {})

    def _call(self, inputs: Any) -> dict[str, np.ndarray]:
        self.scorer.check(inputs)
        if self.scorer.joinable:
            return self.scorer.run(inputs)
        # Rows of such a model answer for each other: each is asked alone, as online.
        rows = next(iter(inputs.values())).shape[0]
        parts = [
            self.scorer.run({name: array[row : row + 1] for name, array in inputs.items()})
            for row in range(rows)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

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
            _numbers(np.zeros(count, np.int32)), _text(self.scorer.digest)
        )
        now = np.full(count, int(self.clock.wall() * 1e6), np.int64)
        scored_at = _numbers(now, pa.timestamp("us", tz="UTC"))
        return pa.table([*kept.columns, *outputs, digest, scored_at], schema=self.schema)


def column_type(spec: TensorSpec) -> Any:
    """Arrow's type of an output: a list where a row has several values."""
    import pyarrow as pa

    value = (
        pa.string()
        if spec.dtype is Datatype.BYTES
        else pa.from_numpy_dtype(np.dtype(spec.dtype.numpy_name))
    )
    inner = spec.shape[1:]
    if DYNAMIC in inner:
        return pa.list_(value)
    width = math.prod(inner)
    return value if width == 1 else pa.list_(value, width)


def output_column(spec: TensorSpec, array: np.ndarray) -> Any:
    """The output as a column: flat in row-major order where a row has several values."""
    import pyarrow as pa

    kind = column_type(spec)
    flat = np.ascontiguousarray(array).reshape(-1)
    if spec.dtype is Datatype.BYTES:
        texts = [value.decode() for value in flat.tolist()]
        values = pa.array(texts, pa.string())
    else:
        values = pa.array(flat) if flat.dtype == bool else _numbers(flat)
    if not pa.types.is_nested(kind):
        return values
    width = math.prod(array.shape[1:])
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, width)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(_numbers(offsets), values)


def _numbers(array: np.ndarray, kind: Any = None) -> Any:
    """The array's own memory as a column; pa.array would load pandas, if there is one, to look."""
    import pyarrow as pa

    kind = kind or pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def _text(text: str) -> Any:
    """A column of one text, likewise."""
    import pyarrow as pa

    data = text.encode()
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))


def _unusable(outputs: dict[str, np.ndarray], *, finite: bool, nul: bool) -> Reasons:
    """By index the rows whose answer cannot be stored, or is not `finite` if it must be."""
    found: Reasons = {}
    for name, array in outputs.items():
        flat = array.reshape(len(array), -1)
        if finite and array.dtype.kind == "f":
            wrong = np.flatnonzero(~np.isfinite(flat).all(axis=1)).tolist()
            found |= dict.fromkeys(wrong, f"the answer {name!r} is not finite")
        elif array.dtype == object:
            wrong = [index for index, row in enumerate(flat) if not all(map(_is_text, row))]
            found |= dict.fromkeys(wrong, f"the answer {name!r} is not UTF-8 text")
            if not nul:
                wrong = [index for index, row in enumerate(flat) if b"\0" in b"".join(row)]
                found |= dict.fromkeys(wrong, f"the answer {name!r} {_NUL}")
    return found


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
