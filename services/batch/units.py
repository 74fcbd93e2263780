"""Values and interfaces of a batch job: units of rows, sources that read them, sinks that commit
them.

A unit is its own commit: its output and then its marker are functions of the unit, the model and
the options, so scoring a unit twice, or two runs of one job at once, produce the same output. A job
resumes with the units that have no marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from mlctl.bundle.tensors import TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.filters import Filter

DIGEST_COLUMN = "mlctl_digest"
FILE_COLUMN, ROW_COLUMN = "mlctl_file", "mlctl_row"
REASON_COLUMN, TEXT_COLUMN = "mlctl_reason", "mlctl_text"


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows that are committed together: row groups of a file, a file, or a range of keys.

    `id` is safe in a file name, sorts in the order of the source, and is the same in every run over
    the same input. `rows` is None if only reading the unit counts them. `part` is what the source
    needs to read it.
    """

    id: str
    origin: str
    rows: int | None
    part: Any = None


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that the source cannot convert to its columns: its number, the reason, and its text."""

    row: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a unit. `numbers` are their row numbers in the unit's origin, from 0."""

    table: pa.Table
    numbers: Sequence[int] | np.ndarray
    unreadable: tuple[UnreadableRow, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredPiece:
    """Answers of a piece, its quarantined rows if there are any, and the count of filtered rows."""

    answers: pa.Table
    quarantine: pa.Table | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """The record of a committed unit: counts of answers, bad and filtered rows, and its files.

    `reason` is that of the last bad row.
    """

    unit: str
    rows: int = 0
    bad: int = 0
    skipped: int = 0
    files: tuple[str, ...] = ()
    origin: str = ""
    reason: str = ""
    scored_at: str = ""

    def __add__(self, piece: ScoredPiece) -> Marker:
        bad = piece.quarantine
        return replace(
            self,
            rows=self.rows + piece.answers.num_rows,
            bad=self.bad + (0 if bad is None else bad.num_rows),
            skipped=self.skipped + piece.skipped,
            reason=self.reason if bad is None else str(bad[REASON_COLUMN][-1]),
        )

    def as_json(self) -> str:
        """Return the marker as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Parse what `as_json` returned; ValueError or TypeError for anything else."""
        document = json.loads(text)
        return cls(**{**document, "files": tuple(document["files"])})


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Counts over committed units: units, rows with an answer, bad rows, filtered rows."""

    units: int = 0
    rows: int = 0
    bad: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, markers: Iterable[Marker], skipped: int = 0) -> BatchTotals:
        """Return the sums over `markers`; the filter excluded `skipped` rows before any unit."""
        totals = cls(skipped=skipped)
        for marker in markers:
            totals += marker
        return totals

    def __add__(self, marker: Marker) -> BatchTotals:
        return BatchTotals(
            self.units + 1,
            self.rows + marker.rows,
            self.bad + marker.bad,
            self.skipped + marker.skipped,
        )

    @property
    def seen(self) -> int:
        """Rows of the source that are answered, bad or filtered."""
        return self.rows + self.bad + self.skipped


@dataclass(frozen=True)
class Job:
    """Description of a job for its sink.

    Attributes:
        fingerprint: everything that decides the answers, as text by name.
        schema: columns of the answers.
        quarantine: columns of the quarantine.
        partition_by: columns whose values become folders.
        keep: columns copied from the input.
        facts: more for the record of the job.
        outputs: those of the model.
    """

    fingerprint: Mapping[str, str]
    schema: pa.Schema
    quarantine: pa.Schema
    partition_by: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[TensorSpec, ...] = ()

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that identify the fingerprint; part of every file name of the job."""
        return job_id(self.fingerprint)


def job_id(fingerprint: Mapping[str, str]) -> str:
    """Return the id of the job with that fingerprint."""
    return hashlib.sha256(json.dumps(dict(fingerprint), sort_keys=True).encode()).hexdigest()[:12]


def require_same_job(recorded: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise JOB_CHANGED with the old and new value of each name that differs."""
    changed = [name for name in {**recorded, **current} if recorded.get(name) != current.get(name)]
    if changed:
        changes = "; ".join(
            f"{name} was {recorded.get(name, 'not set')}, is {current.get(name, 'not set')}"
            for name in changed
        )
        raise MlctlError(ErrorCode.JOB_CHANGED, f"the output belongs to another job: {changes}")


@dataclass(frozen=True, slots=True)
class ColumnReading:
    """How columns are read: `types` of those that feed inputs, and whether `every` column is kept.

    Sources that state the types of their columns need `types` only where their files differ.
    """

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    every: bool = False


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The units of a job in order; `pruned` rows match no filter and belong to no unit."""

    units: tuple[Unit, ...]
    pruned: int = 0

    @property
    def rows(self) -> int | None:
        """Rows of the source, or None if only reading all of them counts them."""
        counts = [unit.rows for unit in self.units]
        return None if None in counts else self.pruned + sum(filter(None, counts))


def with_types(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the columns with the `types` of some of them, and the columns that are only there."""
    found = {field.name: types.get(field.name, field.type) for field in schema}
    return pa.schema([*({**found, **types}).items()])


class Source(Protocol):
    """Rows of one form of storage. Other processes can unpickle it and read units of its plan."""

    name: str
    # Whether reading waits for a network or another process, while a core has nothing to do.
    waits: bool
    # Whether all columns are text, whatever types `schema` infers.
    only_text: bool
    # Whether later rows may have columns that `schema` lacks.
    open_columns: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns, with the types that `read` returns once `plan` was called."""
        ...

    def identity(self) -> Mapping[str, str]:
        """Return short text that changes when the rows do: sizes, times, a query. No secrets."""
        ...

    def plan(
        self, columns: Sequence[str], condition: Filter | None, reading: ColumnReading | None = None
    ) -> JobPlan:
        """Return the units, and settle the types of `columns`.

        INVALID_INPUT for a file that lacks one of them, or has values of another kind.
        """
        ...

    def read(self, unit: Unit, columns: Sequence[str], piece_rows: int) -> Iterator[Piece]:
        """Yield the rows of `unit` in pieces of at most about `piece_rows`, cut the same every
        time.

        INVALID_INPUT for input that cannot be read, SOURCE_UNAVAILABLE for errors that may pass.
        """
        ...


class Sink(Protocol):
    """A destination of answers, for several threads."""

    # Whether text with a NUL character is rejected.
    forbids_nul: bool
    # Whether a commit waits for a network or for the commit of another unit.
    waits: bool

    def begin(self, job: Job, *, restart: bool = False) -> tuple[dict[str, Marker], bool]:
        """Begin or resume `job`; return the markers by unit, and whether the job was finished.

        JOB_CHANGED, with the differences, if the sink holds another job's answers. `restart` first
        removes what the job before wrote, and nothing else.
        """
        ...

    def find(self, unit: Unit) -> Marker | None:
        """Return the unit's marker if another run has committed it by now."""
        ...

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        """Write the answers and the quarantine of `unit`, and then its marker.

        The caller may repeat the call. SINK_UNAVAILABLE and the OSError of a full disk are
        transient.
        """
        ...

    def finish(self, summary: Mapping[str, object]) -> None:
        """Mark the job as complete; JOB_CHANGED if another job took the output meanwhile."""
        ...

    def close(self) -> None: ...
