"""A batch on its way through the model, and the one thread that models run on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.runtime.bisect import TooManyError
from services.stream.answer_headers import AnswerHeaders
from services.stream.base import Commit, Message, Outgoing
from services.stream.scoring import PASSING, Answers, Fault, MessageScorer, NoMemoryError

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """Messages of one batch; after `done` is set it has `found`, or else an `error`.

    `since` is when the oldest came, on the monotonic clock. At most `most` may be dead letters.
    `dropped` are partitions that went to another consumer meanwhile.
    """

    messages: Sequence[Message]
    since: float
    most: int
    done: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0
    found: Answers | None = None
    answers: Sequence[Outgoing] = ()
    dead: Sequence[Outgoing] = ()
    error: BaseException | None = None
    dropped: set[str] = field(default_factory=set)
    # What it waits for while it is tried again.
    note: str = ""

    def touches(self, partitions: Collection[str]) -> bool:
        """Whether a message of it is of one of `partitions`."""
        wanted = set(partitions)
        return any(message.partition in wanted for message in self.messages)

    @property
    def faults(self) -> int:
        """How many of its messages are dead letters."""
        assert self.found is not None
        return len(self.found.faults)

    def too_many(self) -> MlctlError:
        """Those are too many."""
        assert self.found is not None
        reasons = [fault.sentence for _, fault in sorted(self.found.faults.items())]
        return too_many(len(reasons), len(self.messages), reasons)

    def commit(self) -> Commit:
        """What is to be made durable; nothing of partitions that were dropped."""
        return Commit(self.messages, self.answers, self.dead)

    def stamp(self, stamp: AnswerHeaders) -> None:
        """Make the messages that go out, without those of dropped partitions."""
        assert self.found is not None
        if self.dropped:
            self._cut()
        self.answers = stamp.answers(self.messages, self.found)
        self.dead = stamp.dead(self.messages, self.found.faults) if self.found.faults else ()

    def refuse(self, refused: Mapping[int, str], stamp: AnswerHeaders) -> None:
        """Make dead letters of the messages whose answers, by index, the broker never takes."""
        assert self.found is not None
        answered = [i for i, value in enumerate(self.found.values) if value is not None]
        for index, why in refused.items():
            self.found.values[answered[index]] = None
            self.found.faults[answered[index]] = Fault(ErrorCode.PAYLOAD_TOO_LARGE, why)
        self.stamp(stamp)

    def _cut(self) -> None:
        assert self.found is not None
        kept = [i for i, each in enumerate(self.messages) if each.partition not in self.dropped]
        faults = self.found.faults
        self.messages = [self.messages[i] for i in kept]
        self.found = replace(
            self.found,
            values=[self.found.values[i] for i in kept],
            faults={new: faults[old] for new, old in enumerate(kept) if old in faults},
        )


class ScoringThread:
    """Answers one flight after the other, and tries again what may pass by itself.

    It does so for `patience` seconds, or until `stop` is set. It is a daemon: a model that
    never answers does not keep the process from ending.
    """

    def __init__(
        self,
        scorer: MessageScorer,
        stamp: AnswerHeaders,
        stop: threading.Event,
        patience: float,
        clock: Clock | None = None,
    ) -> None:
        self._scorer = scorer
        self._stamp = stamp
        self._stop = stop
        self._patience = patience
        self._clock = clock or SystemClock()
        self._queue: queue.SimpleQueue[InFlightBatch | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="mlctl-stream-model", daemon=True).start()

    def submit(self, flight: InFlightBatch) -> None:
        """Answer `flight`; its `done` tells when."""
        self._queue.put(flight)

    def close(self) -> None:
        """End the thread after what it has begun."""
        self._queue.put(None)

    def _serve(self) -> None:
        while (flight := self._queue.get()) is not None:
            try:
                self._answer(flight)
            except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for it
                flight.error = error
            flight.done.set()

    def _answer(self, flight: InFlightBatch) -> None:
        values = [message.value for message in flight.messages]
        wait, deadline = _FIRST_WAIT, self._clock.monotonic() + self._patience
        flight.began = self._clock.monotonic()
        while True:
            try:
                flight.found = self._scorer.answer(values, flight.most)
                break
            except TooManyError as error:
                raise too_many(len(error.reasons), len(values), [*error.reasons.values()]) from None
            except MlctlError as error:
                left = deadline - self._clock.monotonic()
                if error.code not in PASSING or left <= 0 or self._stop.is_set():
                    raise
                if isinstance(error, NoMemoryError):
                    self._scorer.shrink()
                wait = min(wait, left)
                flight.note = f"{error.message}; trying again in {wait:.1f} s"
                self._stop.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
        flight.stamp(self._stamp)


def too_many(dead: int, messages: int, reasons: Sequence[str]) -> MlctlError:
    """TOO_MANY_DEAD_LETTERS, with the newest reason."""
    said = f"; the last one: {reasons[-1]}" if reasons else ""
    return MlctlError(
        ErrorCode.TOO_MANY_DEAD_LETTERS,
        f"at least {dead} of the newest {messages} messages cannot be answered{said}",
    )
