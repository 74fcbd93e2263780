"""Interfaces of precomputed predictions, which are stored in generations.

A generation is complete before it becomes live. It belongs to the digest of one model, and each
digest has its own live generation. A server reads only the live generation of its own digest, so
the two slots of a rollout never mix answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from mlctl.core.errors import ErrorCode, MlctlError

# Digests whose generations are kept: both slots of a rollout, and one that was tried before.
KEPT_DIGESTS = 3
# An incomplete generation of this age is dropped once a newer one of its model is complete.
ABANDONED_SECONDS = 86_400.0
NO_UNITS: Mapping[str, str] = MappingProxyType({})
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class PrecomputedRow(NamedTuple):
    """An entity's answer: `at` is its Unix time in seconds, `payload` is RowCodec's encoding."""

    key: str
    at: float
    payload: bytes


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """Answers of one model, written by one job; times are Unix times in seconds.

    A `sealed` generation is complete. `flipped_at` is when it last became the live one of its
    digest, None if it never did.
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
class JobRecord:
    """The store's record of the job that writes a generation.

    `job` describes the job, `units` maps the ids of committed units to their records. A generation
    that is not `intact` has lost rows.
    """

    job: str
    units: Mapping[str, str]
    intact: bool = True


class GenerationReader(Protocol):
    """Reads the live generation of one digest; a `quick` reader may be used on an event loop."""

    quick: bool

    def get(self, keys: Sequence[str]) -> list[PrecomputedRow | None]:
        """Return the row of each key or None, all of one generation; StoreError on failure."""
        ...

    def close(self) -> None: ...


class PrecomputedStore(Protocol):
    """Stores generations. Every method raises StoreError if the store is unavailable or broken."""

    def reader(self, digest: str, timeout: float) -> GenerationReader:
        """Return a reader whose lookups time out after `timeout` seconds; opens nothing yet."""
        ...

    def create(self, digest: str, made_at: float, job: str = "") -> int:
        """Create a generation that no reader sees; return its number."""
        ...

    def commit(
        self,
        generation: int,
        rows: Sequence[PrecomputedRow],
        units: Mapping[str, str] = NO_UNITS,
        committed: int = 0,
    ) -> None:
        """Add rows, or replace those of the same keys, and then record their units in JSON by id.

        Doing a unit twice is harmless, so several runs of one job may write a generation.
        JOB_CHANGED if the generation was dropped, if the store holds fewer than the `committed`
        units that the job has committed before, or if it has lost rows.
        """
        ...

    def record(self, generation: int) -> JobRecord | None:
        """Return the record of the generation's job; None if no job made it."""
        ...

    def seal(self, generation: int, committed: int = 0) -> None:
        """Mark a generation as complete; raises what `commit` does."""
        ...

    def flip(self, generation: int, at: float) -> None:
        """Make a generation the live one of its digest, and drop unused ones.

        NOT_FOUND if there is no such generation, NOT_READY if it is not sealed or has lost rows.
        """
        ...

    def drop(self, generation: int) -> None:
        """Remove a generation. If it was live, its digest has no live generation afterwards."""
        ...

    def generations(self) -> list[StoredGeneration]:
        """Return all generations, ordered by number."""
        ...

    def close(self) -> None: ...


class StoreError(Exception):
    """The store is unavailable or broken, or holds unexpected data."""


def check_name(name: str) -> str:
    """Return `name` if it is a valid name for precomputed answers; INVALID_INPUT otherwise."""
    if not re.match(NAME_PATTERN, name):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{name[:80]!r} is not a valid name for precomputed predictions",
            "Use up to 64 letters, digits, dots, dashes and underscores.",
        )
    return name


def surplus(generations: Sequence[StoredGeneration]) -> list[StoredGeneration]:
    """Return the generations to drop: neither live nor previous, or of an old digest.

    Generations that were never live are kept, because a job may be writing them.
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


def dropped(generation: int) -> MlctlError:
    """The error of a job whose generation does not exist any more."""
    return MlctlError(
        ErrorCode.JOB_CHANGED,
        f"generation {generation} was dropped while the job wrote it",
        "Run the same command again: it starts another generation.",
    )


def rows_lost(generation: int) -> MlctlError:
    """The error of a job whose committed rows the store has lost."""
    return MlctlError(
        ErrorCode.JOB_CHANGED,
        f"the store has lost committed rows of generation {generation}; it stays out of use",
        "Run the same command again: it writes the lost rows again.",
    )


def require_sealed(generation: int, sealed: bool | None) -> None:
    """Raise NOT_FOUND if `sealed` is None (no such generation), NOT_READY if it is False."""
    if sealed is None:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"generation {generation} does not exist",
            "`mlctl precomputed show NAME` lists the generations.",
        )
    if not sealed:
        raise incomplete(generation, "is not complete")


def incomplete(generation: int, reason: str) -> MlctlError:
    """The error for a generation that cannot be made live, as it lacks rows."""
    return MlctlError(
        ErrorCode.NOT_READY,
        f"generation {generation} {reason}",
        "Run its batch job again: it writes the missing rows.",
    )
