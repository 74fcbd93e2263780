"""The seams of a batch: where rows come from, and where answers are committed.

A source cuts its rows into units in an order that never changes for the same identity. A
sink keeps the ledger of the units that it holds, in the same place as the answers, so that
a killed job goes on where it stopped. pyarrow is loaded by whoever opens one of them.
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
    run over the same identity. `origin` is what a person calls the place, such as a file.
    """

    id: str
    origin: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no answer: its number in the unit's origin, why, and what it held.

    `values` are of JSON: services.batch.values says how others are written.
    """

    row: int
    reason: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A unit's rows as a table, with those that the source itself could not read as rows.

    `numbers` are the rows' numbers in the origin where they are not unit.start, +1, +2...
    """

    unit: Unit
    table: pa.Table
    rejected: tuple[BadRow, ...] = ()
    numbers: Sequence[int] | None = None

    def number(self, index: int) -> int:
        """The number in the origin of the table's row `index`."""
        return self.unit.start + index if self.numbers is None else int(self.numbers[index])


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A bad row as a sink keeps it; (unit, row) is its key."""

    unit: str
    origin: str
    bad: BadRow


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What became of a unit: a table of answers and kept columns, and the rows without one.

    `skipped` rows were left out by the filter. `resolved` are the keys (unit, row) of
    quarantined rows that leave the quarantine with this commit: those of a redrive.
    """

    unit: Unit
    table: pa.Table
    bad: tuple[BadRow, ...] = ()
    skipped: int = 0
    resolved: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What a sink must know of a job before the first commit.

    `fingerprint` is a flat mapping of names to text: everything that decides the answers.
    `schema` is of each result's table, `input_schema` of what the source reads. Answers are
    parted by the columns `partition_by`, in a form that has parts. `facts` are kept for
    redrive and for people, and may change from run to run.
    """

    fingerprint: Mapping[str, str]
    schema: pa.Schema
    input_schema: pa.Schema
    facts: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of what is committed: units, rows with an answer, bad rows, filtered rows."""

    units: int = 0
    rows: int = 0
    bad: int = 0
    skipped: int = 0

    @property
    def seen(self) -> int:
        """Rows of the source that are dealt with."""
        return self.rows + self.bad + self.skipped


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job stands: its committed units, and whether it was finished."""

    done: frozenset[str] = frozenset()
    totals: Totals = Totals()
    finished: bool = False


class Source(Protocol):
    """Rows of one form of storage."""

    name: str
    schema: pa.Schema

    def identity(self) -> Mapping[str, str]:
        """What changes when the rows do, cheap to get and without secrets: sizes, times, a query.

        Each value is short and readable: a changed one is shown to the user.
        """
        ...

    def total_rows(self) -> int | None:
        """How many rows there are; None if only reading them all would tell."""
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
    """A source whose units can be read on their own, in any order, by other processes too."""

    def check(self, columns: Sequence[str]) -> None:
        """INVALID_INPUT if `columns` cannot be read, or not everywhere in the same types."""
        ...

    def units(self) -> Iterator[Unit]:
        """All units in order."""
        ...

    def read(self, unit: Unit, columns: Sequence[str]) -> Chunk:
        """The rows of `unit`; reading units in order costs no more than a scan."""
        ...


class Sink(Protocol):
    """A place for answers, with its ledger. `commit_rows` is how many rows make a good commit."""

    commit_rows: int

    def __enter__(self) -> Self:
        """Take the place; JOB_RUNNING if another runner has it."""
        ...

    def __exit__(self, *exc_info: object) -> None: ...

    def begin(self, job: Job, *, restart: bool = False) -> Progress:
        """What is committed already, after removing what a killed runner left half-done.

        JOB_CHANGED, with what changed, if the place holds another job's answers; `restart`
        removes those instead.
        """
        ...

    def commit(self, results: Sequence[UnitResult]) -> None:
        """Make answers, bad rows and the ledger's rows durable: all of them or nothing.

        May be called again with the same results after it failed. SINK_UNAVAILABLE or an
        OSError for want of space are worth another try; other errors end the job.
        """
        ...

    def finish(self, summary: Mapping[str, object]) -> None:
        """Mark the job as complete."""
        ...


@runtime_checkable
class QuarantineSink(Sink, Protocol):
    """A sink whose bad rows can be scored again."""

    def require_job(self) -> None:
        """Before it is entered: NOT_FOUND if no job was begun here. Nothing is made.

        A place that must be entered to know is left to `stored`.
        """
        ...

    def stored(self) -> tuple[Job, Progress]:
        """The job whose answers are here, and how far it got; NOT_FOUND if there is none."""
        ...

    def quarantined(self) -> Iterator[Quarantined]:
        """The rows that have no answer yet, in order of their keys."""
        ...


@runtime_checkable
class TextSink(Sink, Protocol):
    """A sink that may have no place for text with a NUL character: such a row is a bad one."""

    forbids_nul: bool


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What `--in` and its options say; `options` are particular to one form of storage."""

    location: str
    unit_rows: int
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """What `--out` and its options say; `options` are particular to one form of storage."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict)
