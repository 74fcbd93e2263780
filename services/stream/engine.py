"""The run of a stream: gather messages, score them, commit the answers.

Two threads. The engine's thread owns the connection: it polls, also while the model works, and
commits batches in the order of their polls. The scoring thread runs the model: it scores the next
batch while the engine commits the last one.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mlctl.core.backoff import pause_after
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import AnswerHeaders
from mlctl.services.stream.base import (
    Commit,
    LostPartitionsError,
    Message,
    Outgoing,
    RejectedAnswersError,
    RetryLaterError,
    StreamConnection,
)
from mlctl.services.stream.batching import (
    BatchGoals,
    BatchingWindow,
    DeadLetterLimit,
    MessageBuffer,
)
from mlctl.services.stream.events import CommittedBatch, StreamEvent, StreamPhase, StreamTotals
from mlctl.services.stream.scoring import (
    TRANSIENT,
    BatchAnswers,
    Fault,
    MessageScorer,
    OutOfMemoryError,
)
from mlctl.services.tables.bisect import TooManyError

_T = TypeVar("_T")
_IDLE_WAIT = 0.25
# How long the engine waits for the model before it polls again.
_POLL_PERIOD = 0.002
_LAG_PERIOD = 1.0
# With --until-empty: a killed member's partitions move after the transport's takeover time, and
# brokers check for dead members only now and then.
_TAKEOVER_FACTOR = 1.5
_BROKER_RETRY, _BROKER_RETRY_MAX = 0.5, 30.0
_MODEL_RETRY, _MODEL_RETRY_MAX = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run.

    `dead_share` of the newest messages may be dead letters. `patience_s` is how long a broker or
    a model may be unavailable, `revoke_s` how long a batch may take whose partitions another
    consumer waits for. With `until_empty` a run ends when the group's lag is 0.
    """

    goals: BatchGoals = field(default_factory=BatchGoals)
    dead_share: float = 0.1
    patience_s: float = 300.0
    revoke_s: float = 10.0
    max_messages: int | None = None
    until_empty: bool = False


@dataclass(frozen=True, slots=True)
class StreamReport:
    """How a run ended; `complete` unless it was stopped before the end that it had."""

    totals: StreamTotals
    seconds: float
    complete: bool


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """Messages of one batch on their way through the model; `done` once scored or failed.

    `since` is when the oldest message arrived, on the monotonic clock. At most `max_dead` may be
    dead letters. `dropped` are partitions that went to another consumer meanwhile.
    """

    messages: Sequence[Message]
    since: float
    max_dead: int
    done: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0
    scored: BatchAnswers | None = None
    answers: Sequence[Outgoing] = ()
    dead: Sequence[Outgoing] = ()
    error: BaseException | None = None
    dropped: set[str] = field(default_factory=set)
    # Why the model is tried again.
    note: str = ""

    @property
    def result(self) -> BatchAnswers:
        """The answers and faults of a batch that was scored."""
        assert self.scored is not None
        return self.scored

    def write(self, headers: AnswerHeaders) -> None:
        """Make the outgoing messages, without those of dropped partitions."""
        if self.dropped:
            kept = [i for i, each in enumerate(self.messages) if each.partition not in self.dropped]
            faults = self.result.faults
            self.messages = [self.messages[i] for i in kept]
            self.scored = replace(
                self.result,
                values=[self.result.values[i] for i in kept],
                faults={new: faults[old] for new, old in enumerate(kept) if old in faults},
            )
        self.answers = headers.answers(self.messages, self.result)
        self.dead = headers.dead(self.messages, self.result.faults) if self.result.faults else ()

    def reject(self, error: RejectedAnswersError, headers: AnswerHeaders) -> None:
        """Make dead letters of the messages whose answers the destination never accepts."""
        answered = [i for i, value in enumerate(self.result.values) if value is not None]
        for index, reason in error.rejected.items():
            self.result.values[answered[index]] = None
            self.result.faults[answered[index]] = Fault(error.code, reason)
        self.write(headers)

    def too_many_dead(self) -> MlctlError:
        """TOO_MANY_DEAD_LETTERS for this batch."""
        reasons = [fault.reason for _, fault in sorted(self.result.faults.items())]
        return too_many_dead(len(reasons), len(self.messages), reasons)


class ScoringThread:
    """Scores one batch after the other, and repeats what failed with a transient error.

    It repeats for `patience_s` seconds, or until `stop` is set. The thread is a daemon: a model
    that never returns does not keep the process alive.
    """

    def __init__(
        self,
        scorer: MessageScorer,
        headers: AnswerHeaders,
        stop: threading.Event,
        patience_s: float,
        clock: Clock,
    ) -> None:
        self._scorer = scorer
        self._headers = headers
        self._stop = stop
        self._patience_s = patience_s
        self._clock = clock
        self._queue: queue.SimpleQueue[InFlightBatch | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="mlctl-stream-model", daemon=True).start()

    def submit(self, batch: InFlightBatch) -> None:
        """Score `batch`, and set its `done`."""
        self._queue.put(batch)

    def close(self) -> None:
        """End the thread after the batches that were submitted."""
        self._queue.put(None)

    def _serve(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self._score(batch)
            except BaseException as error:  # noqa: BLE001 - the engine raises it again
                batch.error = error
            batch.done.set()

    def _score(self, batch: InFlightBatch) -> None:
        values = [message.value for message in batch.messages]
        batch.began = self._clock.monotonic()
        deadline = batch.began + self._patience_s
        for failures in itertools.count(1):
            try:
                batch.scored = self._scorer.answer(values, batch.max_dead)
                break
            except TooManyError as error:
                reasons = [*error.reasons.values()]
                raise too_many_dead(len(reasons), len(values), reasons) from None
            except MlctlError as error:
                left = deadline - self._clock.monotonic()
                if error.code not in TRANSIENT or left <= 0 or self._stop.is_set():
                    raise
                if isinstance(error, OutOfMemoryError):
                    self._scorer.shrink()
                wait = min(pause_after(failures, _MODEL_RETRY, _MODEL_RETRY_MAX), left)
                batch.note = f"{error.message}; trying again in {wait:.1f} s"
                self._stop.wait(wait)
        batch.write(self._headers)


def too_many_dead(dead: int, messages: int, reasons: Sequence[str]) -> MlctlError:
    """TOO_MANY_DEAD_LETTERS, with the newest reason."""
    newest = f"; the last one: {reasons[-1]}" if reasons else ""
    return MlctlError(
        ErrorCode.TOO_MANY_DEAD_LETTERS,
        f"at least {dead} of the newest {messages} messages cannot be answered{newest}",
    )


@dataclass(slots=True)
class StreamEngine:
    """One run over an open `connection`; it reports to `on_event`, and `stop` ends it."""

    connection: StreamConnection
    scorer: MessageScorer
    headers: AnswerHeaders
    settings: RunSettings
    on_event: Callable[[StreamEvent], None]
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Clock = field(default_factory=SystemClock)
    totals: StreamTotals = field(init=False, default=StreamTotals())
    _window: BatchingWindow = field(init=False)
    _limit: DeadLetterLimit = field(init=False)
    _buffer: MessageBuffer = field(init=False)
    _model: ScoringThread = field(init=False)
    _flight: InFlightBatch | None = field(init=False, default=None)
    _began: float = field(init=False)
    # When a message arrived last, or partitions moved.
    _active: float = field(init=False)
    _lag: Mapping[str, int] | None = field(init=False, default=None)
    _lag_at: float = field(init=False, default=float("-inf"))
    _group_lag: int | None = field(init=False, default=None)
    _group_lag_at: float = field(init=False, default=float("-inf"))
    _rebalances: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._window = BatchingWindow(self.settings.goals)
        self._limit = DeadLetterLimit(self.settings.dead_share)
        self._buffer = MessageBuffer(self._window)
        self._began = self._active = self.clock.monotonic()

    def run(self) -> StreamReport:
        """Score until there is an end, or `stop` is set; commit the batch that was begun.

        TOO_MANY_DEAD_LETTERS before the batch that crosses the limit is committed; the error of
        the broker or the model after `patience_s`. Uncommitted messages are delivered again.
        """
        self.connection.listen(self)
        self._model = ScoringThread(
            self.scorer, self.headers, self.stop, self.settings.patience_s, self.clock
        )
        try:
            self._report(StreamPhase.STARTED)
            while not self.stop.is_set() and not self._at_end():
                self._collect(launch=True)
                self._launch()
                self._fetch()
            stopped = self.stop.is_set() and not self._at_end()
            if stopped:
                self._report(StreamPhase.STOPPING)
            while self._flight is not None:
                self._flight.done.wait(_IDLE_WAIT)
                self._collect(launch=False)
                self._retried(lambda: self.connection.poll(0, 0.0))
        finally:
            self._model.close()
        self._report(StreamPhase.FINISHED)
        return StreamReport(self.totals, self._seconds, not stopped)

    # ---- gathering and scoring

    def _fetch(self) -> None:
        """Poll for as long as there is nothing better to do."""
        flight = self._flight
        room = self._buffer.room()
        if self.settings.max_messages is not None:
            room = min(room, self.settings.max_messages - self._taken)
        if room <= 0 or self.connection.ended:
            if flight is not None:
                flight.done.wait(_IDLE_WAIT)
            self._retried(lambda: self.connection.poll(0, 0.0))
            return
        if flight is not None:
            ready = len(self._buffer) >= self._window.limit
            if flight.done.wait(_IDLE_WAIT / 10 if ready else _POLL_PERIOD):
                return
            wait = 0.0 if ready else _POLL_PERIOD
        elif self._buffer:
            wait = min(self._left_to_linger(), _IDLE_WAIT)
        else:
            wait = _IDLE_WAIT
        messages = self._retried(lambda: self.connection.poll(room, wait))
        now = self.clock.monotonic()
        if messages:
            self._active = now
            self._buffer.add(messages, now)
        elif wait > _POLL_PERIOD and self._refresh_lag():
            self._report(StreamPhase.IDLE)

    def _launch(self) -> None:
        """Submit the next batch once it is large or old enough."""
        if self._flight is not None or not self._buffer or self.stop.is_set():
            return
        if not self._is_last and self._left_to_linger() > 0:
            return
        messages, since = self._buffer.take()
        self._flight = InFlightBatch(messages, since, self._limit.room(len(messages)))
        self._model.submit(self._flight)

    def _left_to_linger(self) -> float:
        age = self.clock.monotonic() - self._buffer.since
        return self._window.linger(len(self._buffer)) - age

    # ---- committing

    def _collect(self, *, launch: bool) -> None:
        """Commit the batch that is done; the next one is launched first, so that both overlap."""
        flight = self._flight
        if flight is None:
            return
        if flight.note:
            self._report(StreamPhase.PAUSED, flight.note)
            flight.note = ""
        if not flight.done.is_set():
            return
        self._flight = None
        if flight.error is not None:
            raise flight.error
        if self._crosses_limit(flight):
            raise flight.too_many_dead()
        self._limit.observe(len(flight.messages), len(flight.result.faults))
        if launch:
            self._launch()
        self._commit(flight, self.settings.patience_s)

    def _crosses_limit(self, flight: InFlightBatch) -> bool:
        return len(flight.result.faults) > self._limit.room(len(flight.messages))

    def _commit(self, flight: InFlightBatch, patience_s: float) -> None:
        if flight.dropped:
            flight.write(self.headers)
        if not flight.messages:
            return
        began = self.clock.monotonic()
        commit = Commit(flight.messages, flight.answers, flight.dead)
        try:
            self._retried(lambda: self.connection.commit(commit), patience_s)
        except RejectedAnswersError as error:
            crosses = len(error.rejected) > self._limit.room(0)
            flight.reject(error, self.headers)
            if crosses:
                raise flight.too_many_dead() from error
            self._limit.observe(0, len(error.rejected))
            self._commit(flight, patience_s)
            return
        except LostPartitionsError:
            self._discard_all()
            return
        scored = flight.result
        stages = {**scored.stages, "commit": self.clock.monotonic() - began}
        count, dead = len(flight.messages), len(flight.dead)
        self._window.observe(count, sum(stages.values()))
        self.totals = StreamTotals(self.totals.answers + count - dead, self.totals.dead + dead)
        batch = CommittedBatch(
            messages=count,
            rows=scored.rows,
            answers=count - dead,
            dead=dead,
            wait_s=flight.began - flight.since,
            stages=stages,
            reasons=Counter(fault.code.value for fault in scored.faults.values()),
        )
        self._refresh_lag()
        self._report(StreamPhase.COMMITTED, batch=batch)

    # ---- partitions that move

    def revoked(self, partitions: Sequence[str]) -> None:
        """Commit the batch in flight if it is done in time, and discard the rest."""
        flight = self._flight
        moved = set(partitions)
        if flight is not None and any(each.partition in moved for each in flight.messages):
            flight.done.wait(self.settings.revoke_s)
            # A batch that crosses the limit ends the run instead.
            if flight.done.is_set() and flight.error is None and not self._crosses_limit(flight):
                self._flight = None
                self._limit.observe(len(flight.messages), len(flight.result.faults))
                try:
                    # No longer: the broker drops a member that does not poll.
                    self._commit(flight, self.settings.revoke_s)
                except MlctlError as error:
                    if error.code not in TRANSIENT:
                        raise
                    # Not committed: the next owner answers these messages.
        self._discard(partitions, "revoked")

    def lost(self, partitions: Sequence[str]) -> None:
        """Discard messages of partitions that another consumer owns already."""
        self._discard(partitions, "lost")

    def _discard(self, partitions: Collection[str], how: str) -> None:
        self._buffer.drop(partitions)
        if self._flight is not None:
            self._flight.dropped |= set(partitions)
        self._rebalances += 1
        self._active = self.clock.monotonic()
        names = ", ".join(sorted(partitions))
        self._report(StreamPhase.REBALANCED, f"partitions {names} were {how}")

    def _discard_all(self) -> None:
        """Discard everything uncommitted; the connection delivers again what is still owned."""
        self._buffer.clear()
        if self._flight is not None:
            self._flight.dropped |= {each.partition for each in self._flight.messages}
        self._report(
            StreamPhase.REBALANCED, "a commit was rejected: another consumer owns the partitions"
        )

    # ---- the end

    @property
    def _taken(self) -> int:
        """Return the number of messages that are committed or will be."""
        in_flight = 0 if self._flight is None else len(self._flight.messages)
        return self.totals.messages + len(self._buffer) + in_flight

    @property
    def _is_last(self) -> bool:
        """Return whether no message follows those in the buffer."""
        return self.connection.ended or self._taken == self.settings.max_messages

    def _at_end(self) -> bool:
        if self._flight is not None or self._buffer:
            return False
        return self._is_last or (self.settings.until_empty and self._group_is_done())

    def _group_is_done(self) -> bool:
        """Return whether the group has committed every message of the source.

        A member without partitions waits until the others have committed theirs, or until it
        takes over the partitions of a killed member. BROKER_UNAVAILABLE if the group's lag has
        not changed for `patience_s` seconds, and for longer than a takeover takes.
        """
        now = self.clock.monotonic()
        if now - self._active < _IDLE_WAIT or now - self._group_lag_at < _LAG_PERIOD:
            return False
        lag = self._retried(self.connection.group_lag)
        now = self.clock.monotonic()
        if lag != self._group_lag:
            self._group_lag, self._active = lag, now
        self._group_lag_at = now
        if not lag:
            self._lag = self._retried(self.connection.lag)
            return True
        quiet = now - self._active
        takeover = _TAKEOVER_FACTOR * self.connection.takeover_s
        if quiet >= max(self.settings.patience_s, takeover):
            raise MlctlError(
                ErrorCode.BROKER_UNAVAILABLE,
                f"the group has {lag:,} messages left and committed none for {quiet:.0f} s",
                "Another consumer of the group holds them. When it has ended, run the same "
                "command again.",
            )
        return False

    # ---- errors and events

    def _retried(self, act: Callable[[], _T], patience_s: float | None = None) -> _T:
        """Call `act` again after transient errors, until the patience or the run ends."""
        patience_s = self.settings.patience_s if patience_s is None else patience_s
        failures, deadline = 0, self.clock.monotonic() + patience_s
        while True:
            try:
                return act()
            except MlctlError as error:
                left = deadline - self.clock.monotonic()
                if error.code not in TRANSIENT or left <= 0 or self.stop.is_set():
                    raise
                failures += 1
                wait = pause_after(failures, _BROKER_RETRY, _BROKER_RETRY_MAX)
                if isinstance(error, RetryLaterError):
                    wait = max(wait, error.retry_after)
                wait = min(wait, left)
                self._report(StreamPhase.PAUSED, f"{error.message}; trying again in {wait:.1f} s")
                self.stop.wait(wait)
                # No message could arrive while the broker was unavailable.
                self._active = self.clock.monotonic()

    def _refresh_lag(self) -> bool:
        """Update the lag once a second; return whether it was updated."""
        now = self.clock.monotonic()
        if now - self._lag_at < _LAG_PERIOD:
            return False
        self._lag_at = now
        try:
            self._lag = self.connection.lag()
        except MlctlError as error:
            if error.code is not ErrorCode.BROKER_UNAVAILABLE:
                raise
        return True

    @property
    def _seconds(self) -> float:
        return self.clock.monotonic() - self._began

    def _report(
        self, phase: StreamPhase, detail: str = "", batch: CommittedBatch | None = None
    ) -> None:
        self.on_event(
            StreamEvent(
                phase, self.totals, self._seconds, self._lag, batch, self._rebalances, detail
            )
        )
