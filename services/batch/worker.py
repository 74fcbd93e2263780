"""What scores the units of a job: it reads, scores and commits one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeGuard

import pyarrow as pa

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import require_packages
from mlctl.services.batch.scoring import BatchScorer, PieceScorer, ScoringPlan
from mlctl.services.batch.units import REASON_COLUMN, Marker, Piece, ScoredPiece, Sink, Source, Unit
from mlctl.services.layout.scorable import Scorable, open_scorable, unit_rows
from mlctl.services.model.settings import RuntimeSettings, read_environment
from mlctl.services.tables.bisect import TooManyError

# Pieces of a unit that are read or scored ahead of the one that is written.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class UnitWorker:
    """Reads, scores and commits units of one job, each in the thread that calls `process`.

    Threads of `pool` score pieces of those units, as many at a time as `idle` counts: cores without
    a unit of their own. With `ahead` they score all pieces, while units read and write.
    `abandoned` ends a unit between two of its pieces, and leaves nothing of it.
    """

    source: Source
    sink: Sink
    columns: tuple[str, ...]
    scorer: PieceScorer
    piece_rows: int
    max_bad: int | None
    pool: ThreadPoolExecutor | None = None
    idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ahead: bool = False
    abandoned: threading.Event = field(default_factory=threading.Event)

    def process(self, unit: Unit) -> Marker:
        """Commit `unit` unless another run has; TooManyError if too many of its rows are bad."""
        return self.sink.find(unit) or self.sink.commit(unit, self._scored(unit))

    def _scored(self, unit: Unit) -> Iterator[ScoredPiece]:
        bad = 0
        pieces = self.source.read(unit, self.columns, self.piece_rows)
        for scored in self._in_order(unit, pieces):
            if self.abandoned.is_set():
                raise MlctlError(ErrorCode.INTERRUPTED, f"unit {unit.id} was abandoned")
            if scored.quarantine is not None:
                bad += scored.quarantine.num_rows
                if self.max_bad is not None and bad > self.max_bad:
                    reason = str(scored.quarantine[REASON_COLUMN][-1])
                    raise TooManyError(dict.fromkeys(range(bad), reason))
            yield scored

    def _in_order(self, unit: Unit, pieces: Iterator[Piece]) -> Iterator[ScoredPiece]:
        pending: deque[Future[ScoredPiece]] = deque()
        for piece in pieces:
            pending.append(self._score(unit, piece))
            while pending and (pending[0].done() or len(pending) > _AHEAD):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _score(self, unit: Unit, piece: Piece) -> Future[ScoredPiece]:
        """Score in the pool if a core is idle, else here, where the piece is in the core's cache.

        More threads than cores would take turns, and each turn load the model's weights again.
        """
        if self.pool is not None and self.idle.acquire(blocking=self.ahead):
            future = self.pool.submit(self.scorer.score, unit, piece)
            future.add_done_callback(lambda _future: self.idle.release())
            return future
        future = Future()
        future.set_result(self.scorer.score(unit, piece))
        return future


@dataclass(frozen=True, slots=True)
class Scoring:
    """Everything that a process needs to commit units; it can be pickled.

    `max_bad` limits the bad rows of a unit, `batch_rows` those of one call of the model, and
    `piece_rows` those in memory at once, each None for the default.
    """

    model: Scorable
    source: Source
    sink: Sink
    plan: ScoringPlan
    schema: pa.Schema
    quarantine: pa.Schema
    max_bad: int | None = None
    batch_rows: int | None = None
    piece_rows: int | None = None

    def open(self) -> UnitWorker:
        """Load the model."""
        scorer = PieceScorer(
            self._open_scorer(),
            self.plan,
            self.schema,
            self.quarantine,
            self.max_bad,
        )
        rows = self.piece_rows or unit_rows(self.model)
        return UnitWorker(self.source, self.sink, self.plan.columns, scorer, rows, self.max_bad)

    def _open_scorer(self) -> BatchScorer:
        if not is_language_model(self.model):
            return open_scorable(self.model, self.batch_rows)
        require_packages("generate", "llguidance", "tokenizers")
        from mlctl.services.generate.scorer import TextScorer

        return TextScorer(self.model, read_environment(RuntimeSettings), self.plan.answers)


def is_language_model(model: Scorable) -> TypeGuard[VerifiedBundle]:
    """Return whether the answers are generated text."""
    return isinstance(model, VerifiedBundle) and model.manifest.generation is not None
