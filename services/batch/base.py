"""Interfaces of a batch job: sources of rows and sinks of answers.

A source cuts its rows into units, always in the same order for the same identity. A sink keeps
the ledger of its committed units in the same place as the answers, so that a killed job can be
resumed. Opening a source or a sink imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

DIGEST_COLUMN = "mlctl_digest"
SCORED_AT_COLUMN = "mlctl_scored_at"


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive rows, committed together: `rows` of them from row `start` of `origin`.

    `id` is safe in a file's name, sorts in the order of the source, and is the same in each
    run over the same identity. `origin` is a name for people, such as that of a file.
    """

    id: str
    origin: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row without an answer: its number in the unit's origin, the reason, and its values.

    `values` are JSON; services.runtime.tabular.values converts other types.
    """

    row: int
    reason: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A unit's rows as a table, and the rows that the source could not read.

    `numbers` are the rows' numbers in the origin if they are not unit.start, +1, +2...
    """

    unit: Unit
    table: pa.Table
    rejected: tuple[BadRow, ...] = ()
    numbers: Sequence[int] | None = None

    def number(self, index: int) -> int:
        """Return the number in the origin of the table's row `index`."""
        return self.unit.start + index if self.numbers is None else int(self.numbers[index])


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A bad row in a sink; (unit, row) is its key."""

    unit: str
    origin: str
    bad: BadRow


@dataclass(frozen=True, slots=True)
class UnitResult:
    """Result of a unit: a table of answers and kept columns, and the rows without an answer.

    The filter left out `skipped` rows. `resolved` are the keys (unit, row) of
    quarantined rows that leave the quarantine with this commit: those of a redrive.
    """

    unit: Unit
    table: pa.Table
    bad: tuple[BadRow, ...] = ()
    skipped: int = 0
    resolved: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """Description of a job for its sink.

    `fingerprint` maps names to text: everything that decides the answers. `schema` is that of
    each result's table, `input_schema` that of the columns read. A folder is partitioned by the
    columns `partition_by`. `facts` are for redrive and for people, and may change between runs.
    """

    fingerprint: Mapping[str, str]
    schema: pa.Schema
    input_schema: pa.Schema
    facts: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Counts of what is committed: units, rows with an answer, bad rows, filtered rows."""

    units: int = 0
    rows: int = 0
    bad: int = 0
    skipped: int = 0

    @property
    def seen(self) -> int:
        """Rows of the source that are answered, bad or skipped."""
        return self.rows + self.bad + self.skipped


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a job: its committed units, and whether it is complete."""

    done: frozenset[str] = frozenset()
    totals: BatchTotals = BatchTotals()
    finished: bool = False


class Source(Protocol):
    """Rows of one form of storage."""

    name: str
    schema: pa.Schema

    def identity(self) -> Mapping[str, str]:
        """Return text that changes when the rows do: sizes, times, a query. Cheap, without secrets.

        Each value is short and readable: the user sees values that changed.
        """
        ...

    def total_rows(self) -> int | None:
        """Return the number of rows, or None if only reading all of them would tell."""
        ...

    def scan(self, columns: Sequence[str], done: Collection[str]) -> Iterator[Chunk]:
        """Yield chunks of `columns` in order, without those of the units in `done`.

        From one thread at a time. INVALID_INPUT says what cannot be read, and where. A source
        raises JOB_CHANGED rather than lose or repeat a row because the units in `done` are no
        longer those rows. After SOURCE_UNAVAILABLE it may be called again.
        """
        ...


@runtime_checkable
class SplittableSource(Source, Protocol):
    """A source whose units can be read one by one, in any order, in other processes too."""

    def check(self, columns: Sequence[str]) -> None:
        """Raise INVALID_INPUT unless each file has `columns` with the same types."""
        ...

    def units(self) -> Iterator[Unit]:
        """Yield all units in order."""
        ...

    def read(self, unit: Unit, columns: Sequence[str]) -> Chunk:
        """Return the rows of `unit`; reading units in order costs no more than a scan."""
        ...


class Sink(Protocol):
    """A destination of answers, with its ledger. A commit has about `commit_rows` rows."""

    commit_rows: int

    def __enter__(self) -> Self:
        """Lock the sink; JOB_RUNNING if another job has it."""
        ...

    def __exit__(self, *exc_info: object) -> None: ...

    def begin(self, job: Job, *, restart: bool = False) -> JobProgress:
        """Begin or resume `job`, remove what a killed run left, and return the progress.

        JOB_CHANGED, with what changed, if the sink holds another job's answers; `restart` removes
        those first, and never what the other job did not write.
        """
        ...

    def commit(self, results: Sequence[UnitResult]) -> None:
        """Commit answers, bad rows and the ledger's rows durably: all of them or nothing.

        A caller may retry the same results. SINK_UNAVAILABLE and the OSError of a full disk are
        transient; other errors end the job.
        """
        ...

    def finish(self, summary: Mapping[str, object]) -> None:
        """Mark the job as complete."""
        ...


@runtime_checkable
class QuarantineSink(Sink, Protocol):
    """A sink whose bad rows can be scored again."""

    def require_job(self) -> None:
        """Raise NOT_FOUND if there is no job, before the sink is entered. Creates nothing.

        A sink that must be entered to know leaves this to `stored`.
        """
        ...

    def stored(self) -> tuple[Job, JobProgress]:
        """Return the job and its progress; NOT_FOUND if there is none."""
        ...

    def quarantined(self) -> Iterator[Quarantined]:
        """Return the rows without an answer, in the order of their keys."""
        ...


@runtime_checkable
class TextSink(Sink, Protocol):
    """A sink that may not be able to store text with a NUL character: such a row is bad."""

    forbids_nul: bool


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """Values of `--in` and its options; `options` belong to one format."""

    location: str
    unit_rows: int
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """Values of `--out` and its options; `options` belong to one format."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict)
