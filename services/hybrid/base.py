"""The seams of hybrid serving: generations of precomputed answers, written whole, then live.

A generation belongs to one model's digest, and each digest has its own live one. A server
reads the live one of its own digest only, so two colours of a rollout never mix answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bundle.errors import ErrorCode, MlctlError

# Generations of so many digests stay: both colours of a rollout, and one that was tried.
KEPT_DIGESTS = 3
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

    def create(self, digest: str, made_at: float) -> int:
        """The number of a new generation that nobody sees."""
        ...

    def put(self, generation: int, rows: Sequence[Row]) -> None:
        """Add rows, or replace those of the same keys; durable once it returns."""
        ...

    def write_back(self, digest: str, rows: Sequence[Row]) -> None:
        """Put `rows` into the live generation of `digest`, which is made if there is none."""
        ...

    def seal(self, generation: int) -> None:
        """Mark a generation as complete."""
        ...

    def flip(self, generation: int, at: float) -> None:
        """Make it the live one of its digest at once; what is older than the previous one goes.

        NOT_FOUND for a generation that is not there, NOT_READY for one that is not sealed.
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


def require_sealed(generation: int, sealed: bool | None) -> None:
    """NOT_FOUND where `sealed` is None as nothing is there, NOT_READY where it is false."""
    if sealed is None:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"there is no generation {generation}",
            "`mlctl hybrid show NAME` lists what there is.",
        )
    if not sealed:
        raise MlctlError(
            ErrorCode.NOT_READY,
            f"generation {generation} is not complete",
            "Run its batch job again: it goes on where it stopped.",
        )
