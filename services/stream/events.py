"""What a run tells of itself: to the terminal, to the metrics, and to scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StreamPhase(StrEnum):
    """What an event tells of."""

    STARTED = "started"
    COMMITTED = "committed"
    # Nothing came for a moment: the lag is fresh, the totals are as before.
    IDLE = "idle"
    # Waiting for a broker, for memory, or for whatever else passes; `detail` says it.
    PAUSED = "paused"
    # Partitions came or went; `detail` says it.
    REBALANCED = "rebalanced"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Messages that this run committed: those with an answer and those that are dead letters."""

    answers: int = 0
    dead: int = 0

    @property
    def messages(self) -> int:
        """All of them."""
        return self.answers + self.dead


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed batch: counts, and the seconds that each step of it took.

    `rows` may be more than messages. `wait_s` is how long its oldest message waited here
    before it was decoded. `reasons` are its dead letters by error code.
    """

    messages: int
    rows: int
    answers: int
    dead: int
    wait_s: float = 0.0
    decode_s: float = 0.0
    score_s: float = 0.0
    encode_s: float = 0.0
    commit_s: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Where a run stands after `seconds`.

    `lag` is by partition of this consumer, at most about a second old; None if it is not known
    yet. `batch` is there when `phase` is COMMITTED.
    """

    phase: StreamPhase
    totals: StreamTotals
    seconds: float
    lag: Mapping[str, int] | None = None
    batch: Batch | None = None
    rebalances: int = 0
    detail: str = ""
