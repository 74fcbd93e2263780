"""The run of a stream: gather, score, commit, while the broker is kept content.

One thread, the pump, owns the link. It polls, also while the model's thread works on a batch,
and commits batches in the order of their polls; the next batch is scored while one is committed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.stream.answer_headers import AnswerHeaders
from services.stream.base import (
    Ending,
    LostPartitionsError,
    Message,
    Pausable,
    Rebalancing,
    RefusedAnswersError,
    StreamConnection,
    TakingOver,
)
from services.stream.buffer import Buffer
from services.stream.events import Batch, StreamEvent, StreamPhase, StreamTotals
from services.stream.in_flight import InFlightBatch, ScoringThread
from services.stream.scoring import PASSING, MessageScorer
from services.stream.window import BatchGoals, BatchingWindow, DeadRate

_T = TypeVar("_T")
_IDLE_WAIT = 0.25
# How long the pump looks away from the broker while the model works.
_GLANCE = 0.002
_LAG_SECONDS = 1.0
# With --until-empty: a killed member's partitions move after the transport's takeover time. Brokers
# check for dead members only now and then, so half of it is added.
_TAKEOVER_FACTOR = 1.5
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`dead_share` of the newest messages may be dead letters. Others are seconds and counts.

    `patience` is for a broker or a model that is away, `revoke_s` for a batch whose partitions
    another consumer waits for. With `until_empty` a run ends when the group's lag is 0.
    """

    goals: BatchGoals = field(default_factory=BatchGoals)
    dead_share: float = 0.1
    patience: float = 300.0
    revoke_s: float = 10.0
    max_messages: int | None = None
    until_empty: bool = False


@dataclass(frozen=True, slots=True)
class StreamReport:
    """How a run ended: `complete` if there was an end to reach, and it was reached."""

    totals: StreamTotals
    seconds: float
    complete: bool


@dataclass(slots=True)
class Pump:
    """One run over an opened `link`; `watch` is told of it, `stop` ends it after a commit."""

    link: StreamConnection
    scorer: MessageScorer
    stamp: AnswerHeaders
    settings: RunSettings
    watch: Callable[[StreamEvent], None]
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Clock = field(default_factory=SystemClock)
    totals: StreamTotals = field(init=False, default=StreamTotals())
    _window: BatchingWindow = field(init=False)
    _rate: DeadRate = field(init=False)
    _buffer: Buffer = field(init=False)
    _model: ScoringThread = field(init=False)
    _flight: InFlightBatch | None = field(init=False, default=None)
    _began: float = field(init=False)
    _heard: float = field(init=False)
    _lag: Mapping[str, int] | None = field(init=False, default=None)
    _lag_at: float = field(init=False, default=float("-inf"))
    _group_lag: int | None = field(init=False, default=None)
    _group_lag_at: float = field(init=False, default=float("-inf"))
    _rebalances: int = field(init=False, default=0)
    _paused: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._window = BatchingWindow(self.settings.goals)
        self._rate = DeadRate(self.settings.dead_share)
        self._buffer = Buffer(self._window)
        self._began = self._heard = self.clock.monotonic()

    def run(self) -> StreamReport:
        """Score until there is an end, or `stop` is set; all that was begun is committed.

        TOO_MANY_DEAD_LETTERS before the batch that would cross the limit is committed; what the
        broker or the model raises once patience has ended. What is not committed comes again.
        """
        if isinstance(self.link, Rebalancing):
            self.link.listen(self)
        self._model = ScoringThread(
            self.scorer, self.stamp, self.stop, self.settings.patience, self.clock
        )
        try:
            self._tell(StreamPhase.STARTED)
            while not self.stop.is_set() and not self._at_end():
                self._step()
            stopped = self.stop.is_set() and not self._at_end()
            if stopped:
                self._tell(StreamPhase.STOPPING)
            while self._flight is not None:
                self._flight.done.wait(_IDLE_WAIT)
                self._collect(launch=False)
                self._patiently(lambda: self.link.poll(0, 0.0))
        finally:
            self._model.close()
        self._tell(StreamPhase.FINISHED)
        return StreamReport(self.totals, self._seconds, not stopped)

    def revoked(self, partitions: Sequence[str]) -> None:
        """Commit the batch that is on its way if it can be done in time; forget the rest."""
        flight = self._flight
        if flight is not None and flight.touches(partitions):
            flight.done.wait(self.settings.revoke_s)
            # A batch that crosses the limit ends the run instead.
            if flight.done.is_set() and flight.error is None and not self._crosses(flight):
                self._flight = None
                self._rate.observe(len(flight.messages), flight.faults)
                self._commit(flight)
        self._leave(partitions, "given up")

    def lost(self, partitions: Sequence[str]) -> None:
        """Another consumer has them: nothing of them may be committed any more."""
        self._leave(partitions, "lost")

    def _step(self) -> None:
        self._collect(launch=True)
        self._launch()
        self._fetch()

    def _fetch(self) -> None:
        flight = self._flight
        room = self._buffer.room()
        if self.settings.max_messages is not None:
            room = min(room, self.settings.max_messages - self._taken)
        self._set_paused(self._buffer.full)
        if room <= 0 or self._ended:
            if flight is not None:
                flight.done.wait(_IDLE_WAIT)
            self._patiently(lambda: self.link.poll(0, 0.0))
            return
        if flight is not None:
            ready = self._buffer.messages >= self._window.limit
            if flight.done.wait(_IDLE_WAIT / 10 if ready else _GLANCE):
                return
            wait = 0.0 if ready else _GLANCE
        elif self._buffer.messages:
            wait = min(self._left_to_linger(), _IDLE_WAIT)
        else:
            wait = _IDLE_WAIT
        self._receive(self._patiently(lambda: self.link.poll(room, wait)), waited=wait > _GLANCE)

    def _receive(self, messages: Sequence[Message], *, waited: bool) -> None:
        now = self.clock.monotonic()
        if messages:
            self._heard = now
            self._buffer.add(messages, now)
        elif waited and self._refresh_lag():
            self._tell(StreamPhase.IDLE)

    def _launch(self) -> None:
        """Give the model its next batch, once that is large or old enough."""
        if self._flight is not None or not self._buffer.messages or self.stop.is_set():
            return
        if not self._last_ones and self._left_to_linger() > 0:
            return
        messages, since = self._buffer.take()
        flight = InFlightBatch(messages, since, self._rate.room(len(messages)))
        self._flight = flight
        self._model.submit(flight)

    def _left_to_linger(self) -> float:
        age = self.clock.monotonic() - self._buffer.since
        return self._window.linger(self._buffer.messages) - age

    def _collect(self, *, launch: bool) -> None:
        """Commit the batch that is done; the next one begins before, so that they overlap."""
        flight = self._flight
        if flight is None:
            return
        if flight.note:
            self._tell(StreamPhase.PAUSED, flight.note)
            flight.note = ""
        if not flight.done.is_set():
            return
        self._flight = None
        if flight.error is not None:
            raise flight.error
        self._judge(flight)
        if launch:
            self._launch()
        self._commit(flight)

    def _judge(self, flight: InFlightBatch) -> None:
        """Refuse a batch that has too many dead letters, before anything of it is committed."""
        if self._crosses(flight):
            raise flight.too_many()
        self._rate.observe(len(flight.messages), flight.faults)

    def _crosses(self, flight: InFlightBatch) -> bool:
        return flight.faults > self._rate.room(len(flight.messages))

    def _commit(self, flight: InFlightBatch) -> None:
        if flight.dropped:
            flight.stamp(self.stamp)
        if not flight.messages:
            return
        began = self.clock.monotonic()
        try:
            self._patiently(lambda: self.link.commit(flight.commit()))
        except RefusedAnswersError as error:
            self._refuse(flight, error.refused)
            return
        except LostPartitionsError:
            self._forget_all()
            return
        assert flight.found is not None
        found, seconds = flight.found, self.clock.monotonic() - began
        count, dead = len(flight.messages), len(flight.dead)
        work = found.decode_s + found.score_s + found.encode_s
        self._window.observe(count, work + seconds)
        self.totals = StreamTotals(self.totals.answers + count - dead, self.totals.dead + dead)
        batch = Batch(
            messages=count,
            rows=found.rows,
            answers=count - dead,
            dead=dead,
            wait_s=flight.began - flight.since,
            decode_s=found.decode_s,
            score_s=found.score_s,
            encode_s=found.encode_s,
            commit_s=seconds,
            reasons=Counter(fault.code.value for fault in found.faults.values()),
        )
        self._refresh_lag()
        self._tell(StreamPhase.COMMITTED, batch=batch)

    def _refuse(self, flight: InFlightBatch, refused: Mapping[int, str]) -> None:
        """Commit it with dead letters in place of these answers, unless they are too many."""
        crosses = len(refused) > self._rate.room(0)
        flight.refuse(refused, self.stamp)
        if crosses:
            raise flight.too_many()
        self._rate.observe(0, len(refused))
        self._commit(flight)

    def _forget_all(self) -> None:
        """Some of it is another's; the link gives again what is ours."""
        self._buffer.clear()
        if self._flight is not None:
            self._flight.dropped |= {each.partition for each in self._flight.messages}
        self._tell(
            StreamPhase.REBALANCED, "a commit was refused: partitions are another consumer's"
        )

    def _leave(self, partitions: Collection[str], how: str) -> None:
        self._buffer.drop(partitions)
        if self._flight is not None:
            self._flight.dropped |= set(partitions)
        self._rebalances += 1
        self._heard = self.clock.monotonic()
        self._tell(StreamPhase.REBALANCED, f"partitions {', '.join(sorted(partitions))} were {how}")

    def _patiently(self, act: Callable[[], _T]) -> _T:
        """Wait and try again while the broker is away, until patience or the run ends."""
        wait, deadline = _FIRST_WAIT, self.clock.monotonic() + self.settings.patience
        while True:
            try:
                found = act()
            except MlctlError as error:
                left = deadline - self.clock.monotonic()
                if error.code not in PASSING or left <= 0 or self.stop.is_set():
                    raise
                wait = min(wait, left)
                self._tell(StreamPhase.PAUSED, f"{error.message}; trying again in {wait:.1f} s")
                self.stop.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
                # While the broker was away nothing could come.
                self._heard = self.clock.monotonic()
            else:
                return found

    @property
    def _taken(self) -> int:
        """Messages that are committed, or on their way to it."""
        flying = 0 if self._flight is None else len(self._flight.messages)
        return self.totals.messages + self._buffer.messages + flying

    @property
    def _ended(self) -> bool:
        return isinstance(self.link, Ending) and self.link.ended

    @property
    def _last_ones(self) -> bool:
        """Whether nothing will come after what is here."""
        return self._ended or self._taken == self.settings.max_messages

    def _at_end(self) -> bool:
        if self._flight is not None or self._buffer.messages:
            return False
        if self._last_ones:
            return True
        return self.settings.until_empty and self._group_is_done()

    def _group_is_done(self) -> bool:
        """Return whether no partition of the source has a message that the group has to commit.

        A member without partitions waits here until the others have committed theirs, or until
        it takes over the partitions of one that was killed. BROKER_UNAVAILABLE if the group's
        lag has not changed for `patience`, and for longer than a takeover takes.
        """
        now = self.clock.monotonic()
        if now - self._heard < _IDLE_WAIT or now - self._group_lag_at < _LAG_SECONDS:
            return False
        lag = self._patiently(self.link.group_lag)
        now = self.clock.monotonic()
        if lag != self._group_lag:
            self._group_lag, self._heard = lag, now
        self._group_lag_at = now
        if not lag:
            self._lag = self._patiently(self.link.lag)
            return True
        takeover = self.link.takeover_s if isinstance(self.link, TakingOver) else 0.0
        quiet = now - self._heard
        if quiet >= max(self.settings.patience, _TAKEOVER_FACTOR * takeover):
            raise MlctlError(
                ErrorCode.BROKER_UNAVAILABLE,
                f"the group has {lag} messages left, and committed none of them for {quiet:.0f} s",
                "Another consumer of the group holds them; when it has ended, run the same "
                "command again.",
            )
        return False

    def _refresh_lag(self) -> bool:
        """Ask for the lag if the last one is old; whether it was asked for."""
        now = self.clock.monotonic()
        if now - self._lag_at < _LAG_SECONDS:
            return False
        self._lag_at = now
        try:
            self._lag = self.link.lag()
        except MlctlError as error:
            if error.code is not ErrorCode.BROKER_UNAVAILABLE:
                raise
        return True

    def _set_paused(self, paused: bool) -> None:
        if paused != self._paused and isinstance(self.link, Pausable):
            (self.link.pause if paused else self.link.resume)()
        self._paused = paused

    @property
    def _seconds(self) -> float:
        return self.clock.monotonic() - self._began

    def _tell(self, phase: StreamPhase, detail: str = "", batch: Batch | None = None) -> None:
        lag, rebalances = self._lag, self._rebalances
        self.watch(StreamEvent(phase, self.totals, self._seconds, lag, batch, rebalances, detail))
