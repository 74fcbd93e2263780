"""The seams of hybrid serving: generations of precomputed answers, written whole, then live.

A generation belongs to one model's digest, and each digest has its own live one. A server
reads the live one of its own digest only, so two colours of a rollout never mix answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bundle.errors import ErrorCode, MlctlError

# Generations of so many digests stay: both colours of a rollout, and one that was tried.
KEPT_DIGESTS = 3
# A job renews the lease on its generation several times in this time. A job whose lease has run
# out counts as dead: another one may resume its generation or drop it.
LEASE_SECONDS = 60.0
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Row(NamedTuple):
    """An entity's answer: `at` is the wall time in seconds, `payload` as RowCodec has it."""

    key: str
    at: float
    payload: bytes


@dataclass(frozen=True, slots=True)
class Generation:
    """Answers of one model, made together: `made_at` in seconds of the wall clock.

    One that is `sealed` is complete. `flipped_at` is when it last became the live one of its
    digest, None if it never was.
    """

    number: int
    digest: str
    made_at: float
    rows: int
    sealed: bool = False
    flipped_at: float | None = None
    live: bool = False
    previous: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """What a job stores in one step: rows, and the record of the units that they complete.

    `units` and `bad` are records as JSON by their ids; `resolved` are ids of bad rows that leave.
    """

    rows: Sequence[Row]
    units: Mapping[str, str] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    resolved: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the store knows of the job that writes a generation.

    `job` is what the job described itself with, `units` are the records of committed units by
    their ids, `bad` is the number of bad rows. One that is not `intact` has lost rows.
    """

    job: str
    units: Mapping[str, str]
    bad: int
    intact: bool


class Reader(Protocol):
    """The live generation of one digest. One that is `quick` may be asked on an event loop."""

    quick: bool

    def get(self, keys: Sequence[str]) -> list[Row | None]:
        """The row of each key, all of one generation; StoreError if the store cannot tell."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """Where generations are. Every method raises StoreError if the store cannot be used."""

    def reader(self, digest: str, timeout: float) -> Reader:
        """A reader that gives up on a lookup after `timeout` seconds; opens nothing yet."""
        ...

    def create(self, digest: str, made_at: float, owner: str, job: str = "") -> int:
        """The number of a new generation that no reader sees; `owner` has its lease."""
        ...

    def claim(self, generation: int, owner: str, job: str | None = None) -> bool:
        """Take or renew the lease on a generation, and replace its `job` if one is given.

        False if the generation is gone, or while another owner has the lease.
        """
        ...

    def release(self, generation: int, owner: str) -> None:
        """End the lease if `owner` has it."""
        ...

    def commit(self, generation: int, owner: str, commit: Commit, units: int = 0) -> None:
        """Add rows, or replace those of the same keys, and record their units; durable then.

        A unit is recorded only if all its rows are there. JOB_RUNNING if `owner` is not the
        last one who claimed it; JOB_CHANGED if the store holds fewer than the `units` that the
        job has committed before, or fewer rows.
        """
        ...

    def record(self, generation: int) -> JobRecord | None:
        """The record of the generation's job; None if no job made it."""
        ...

    def quarantine(self, generation: int) -> Mapping[str, str]:
        """The records of its bad rows by their ids."""
        ...

    def upsert(self, digest: str, rows: Sequence[Row]) -> None:
        """Put `rows` into the live generation of `digest`, which is made if there is none."""
        ...

    def seal(self, generation: int, owner: str, units: int = 0) -> None:
        """Mark a generation of at least `units` units as complete; fails as `commit` does."""
        ...

    def flip(self, generation: int, at: float) -> None:
        """Make it the live one of its digest at once; what is older than the previous one goes.

        NOT_FOUND for a generation that is not there, NOT_READY for one that is not sealed or
        has lost rows.
        """
        ...

    def drop(self, generation: int) -> None:
        """Remove a generation; its digest has none then if it was the live one."""
        ...

    def generations(self) -> list[Generation]:
        """All that are there, in order of their numbers."""
        ...

    def close(self) -> None: ...


class StoreError(Exception):
    """The store cannot be used: it is away, broken, or not what it should be."""


def check_name(name: str) -> str:
    """`name` if it can name a file and a table's rows; INVALID_INPUT otherwise."""
    if not re.match(NAME_PATTERN, name):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{name[:80]!r} is no name for precomputed answers",
            "Use up to 64 letters, digits, dots, dashes and underscores.",
        )
    return name


def surplus(generations: Sequence[Generation]) -> list[Generation]:
    """What nobody can go back to: neither live nor previous, or of a digest long not flipped.

    A generation that was never live is not surplus: a job may be writing it.
    """
    flipped = sorted(
        (each for each in generations if each.live),
        key=lambda each: each.flipped_at or 0.0,
        reverse=True,
    )
    kept = {each.digest for each in flipped[:KEPT_DIGESTS]}
    return [
        each
        for each in generations
        if each.flipped_at is not None
        and (each.digest not in kept or not (each.live or each.previous))
    ]


def taken_over(generation: int) -> MlctlError:
    """The error of a job whose generation is no longer its own."""
    return MlctlError(
        ErrorCode.JOB_RUNNING,
        f"generation {generation} of the precomputed answers is no longer this job's: it was "
        "dropped, lost, or taken over by another machine after this one had not renewed its lease",
        "Run the same command again: it resumes the generation or begins another one.",
    )


def rows_lost(generation: int) -> MlctlError:
    """The error of a job whose committed rows the store has lost."""
    return MlctlError(
        ErrorCode.JOB_CHANGED,
        f"the store has lost committed rows of generation {generation}, which is not made live",
        "Run the same command again: it writes the lost rows again.",
    )


def require_sealed(generation: int, sealed: bool | None) -> None:
    """NOT_FOUND where `sealed` is None as nothing is there, NOT_READY where it is false."""
    if sealed is None:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"there is no generation {generation}",
            "`mlctl hybrid show NAME` lists what there is.",
        )
    if not sealed:
        raise incomplete(generation, "is not complete")


def incomplete(generation: int, reason: str) -> MlctlError:
    """The error for a generation that cannot be made live, as it lacks rows."""
    return MlctlError(
        ErrorCode.NOT_READY,
        f"generation {generation} {reason}",
        "Run its batch job again: it writes what is missing.",
    )
