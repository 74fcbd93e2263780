"""The two answers to one row, found by the request's id and the row's number. Pure.

What came twice from one side is ambiguous and dropped; what finds no partner in time, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mlctl.rollout.domain.shadow.compare import Answer

Key = tuple[str, int]


class AnswerSide(StrEnum):
    """Whose answer it is."""

    LIVE = "live"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded row: its answer at Unix time `at`, and where its segment has the rest of it."""

    key: Key
    digest: str
    at: float
    answer: Answer
    segment: Path
    index: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Both answers to one row."""

    live: Recorded
    candidate: Recorded


@dataclass(slots=True)
class _Entry:
    since: float
    side: AnswerSide
    row: Recorded | None  # None once paired or ambiguous: whatever comes still is ignored


class Joiner:
    """Holds rows until their partner comes, for `grace` seconds and up to `capacity` rows."""

    def __init__(self, grace: float, capacity: int) -> None:
        self._grace = grace
        self._capacity = capacity
        self._entries: dict[Key, _Entry] = {}  # oldest first

    def join(self, side: AnswerSide, rows: Iterable[Recorded], now: float) -> Iterator[Pair]:
        """The pairs that these rows complete."""
        for row in rows:
            entry = self._entries.get(row.key)
            if entry is None:
                self._entries[row.key] = _Entry(now, side, row)
            elif entry.row is not None and entry.side is not side:
                mate, entry.row = entry.row, None
                yield Pair(row, mate) if side is AnswerSide.LIVE else Pair(mate, row)
            else:
                entry.row = None

    def expire(self, now: float) -> int:
        """Forget what is too old or too much; how many of the candidate's rows it lost so."""
        lost = 0
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if now - entry.since <= self._grace and len(self._entries) <= self._capacity:
                break
            del self._entries[key]
            lost += entry.row is not None and entry.side is AnswerSide.CANDIDATE
        return lost
