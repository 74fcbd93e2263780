"""Events of a run, for the terminal, the metrics and scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StreamPhase(StrEnum):
    """What happened."""

    STARTED = "started"
    COMMITTED = "committed"
    # No message arrived for a moment: the lag is new, the totals are unchanged.
    IDLE = "idle"
    # The run waits for a broker or a model; `detail` has the reason.
    PAUSED = "paused"
    # Partitions moved; `detail` says which.
    REBALANCED = "rebalanced"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Messages that this run committed: with an answer, and as dead letters."""

    answers: int = 0
    dead: int = 0

    @property
    def messages(self) -> int:
        """All committed messages."""
        return self.answers + self.dead


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """One committed batch: its counts, and the seconds by stage: decode, score, encode, commit.

    A message may have several `rows`. `wait_s` is how long its oldest message waited in this
    process before decoding. `reasons` counts its dead letters by error code.
    """

    messages: int
    rows: int
    answers: int
    dead: int
    wait_s: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """The state of a run after `seconds`.

    `lag` is by partition of this consumer and about a second old at most; None if it is not
    known yet. Only COMMITTED events have a `batch`.
    """

    phase: StreamPhase
    totals: StreamTotals
    seconds: float
    lag: Mapping[str, int] | None = None
    batch: CommittedBatch | None = None
    rebalances: int = 0
    detail: str = ""
