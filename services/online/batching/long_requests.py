"""Stepwise requests on the model's thread: generators that alternate with batches.

A running step is never interrupted. Between two steps a request is dropped if its client
disconnected or its deadline passed; its generator is closed on the model's thread, so that user
code runs on that thread alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from services.online.batching.model_thread import ModelThread
from services.online.batching.scheduler import BatchScheduler, Ticket, deadline_exceeded
from services.online.metrics.counts import BatchStats
from services.protocol.priority import Priority
from services.runtime.padding import Arrays
from services.runtime.streaming import Answer, AnswerStream

Steps = Generator[Arrays | None, None, None]
_END = object()
logger = logging.getLogger("mlctl.batching")


class LongMeter(Protocol):
    """Record finished requests and the time to a stream's first piece."""

    def batch(self, stats: BatchStats) -> None: ...

    def first_piece(self, seconds: float) -> None: ...


class Stepwise(Protocol):
    """A model that can run in steps: `Scorer`, or a stand-in."""

    def is_long(self, rows: int) -> bool: ...

    def steps(self, inputs: Mapping[str, np.ndarray], *, whole: bool) -> Steps: ...


@dataclass(slots=True, eq=False)
class _Run:
    """One request. `patience` is the seconds that each piece has, None if one deadline holds.

    `running` while the thread is in it; `queued` and `seconds` are how long it waited
    for its first step, and how long its steps since the last piece took. `pieces` were made.
    """

    ticket: Ticket
    steps: Steps
    patience: float | None
    stream: AnswerStream = field(init=False)
    running: bool = False
    pieces: int = 0
    queued: float = 0.0
    seconds: float = 0.0
    total: float = 0.0


class LongRequests:
    """The open stepwise requests of one model; `wake` is called when one may run."""

    def __init__(
        self,
        model: Stepwise,
        policy: BatchScheduler,
        thread: ModelThread,
        clock: Clock,
        wake: Callable[[], None],
        meter: LongMeter,
    ) -> None:
        self._model = model
        self._policy = policy
        self._thread = thread
        self._clock = clock
        self._wake = wake
        self._meter = meter
        self._runs: dict[int, _Run] = {}
        self._last_call: float | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def open(
        self, inputs: Arrays, rows: int, timeout: float, priority: Priority, *, whole: bool
    ) -> AnswerStream:
        """Queue a request; its pieces come from the stream, one if `whole`.

        `timeout` (seconds) is for the whole answer if it is to come `whole`, else for each
        piece to be made and again to be taken. Raises what `BatchScheduler.offer_long` does.
        """
        now = self._clock.monotonic()
        ticket = self._policy.offer_long(rows, now, now + timeout, priority)
        run = _Run(ticket, self._model.steps(inputs, whole=whole), None if whole else timeout)
        run.stream = AnswerStream(partial(self._taken, run), partial(self._left, run))
        self._runs[ticket.number] = run
        self._wake()
        return run.stream

    def step(self, ticket: Ticket, now: float) -> None:
        """Run the next step of a request that the policy released."""
        run = self._runs[ticket.number]
        if not run.running and not run.total:
            run.queued = now - ticket.arrived
        run.running = True
        self._thread.submit(partial(next, run.steps, _END), partial(self._stepped, run, now))

    def expire(self, ticket: Ticket) -> None:
        """Fail a request that the policy dropped at its deadline."""
        self._fail(self._runs[ticket.number], deadline_exceeded())

    def last_call(self) -> None:
        """Stop extending deadlines: each answer ends within the time of one piece."""
        if self._last_call is None:
            self._last_call = self._clock.monotonic()

    def close(self) -> None:
        """Fail all requests with UNAVAILABLE."""
        for run in list(self._runs.values()):
            self._policy.cancel(run.ticket)
            self._fail(run, MlctlError(ErrorCode.UNAVAILABLE, "the server is stopping"))

    def _stepped(self, run: _Run, started: float, result: object) -> None:
        """Free the slot, and queue the next step unless this was the last one."""
        now = self._clock.monotonic()
        run.running = False
        run.seconds += now - started
        run.total += now - started
        over = run.stream.ended or result is _END or isinstance(result, BaseException)
        if isinstance(result, dict) and not run.stream.ended:
            answer = Answer(result, run.queued, run.seconds, run.ticket.rows)
            if run.patience is not None and not run.pieces:
                self._meter.first_piece(now - run.ticket.arrived)
            run.pieces += 1
            run.stream.put(answer)
            run.seconds = 0.0
        parked = run.stream.full
        self._policy.stepped(now - started, None if over else self._deadline(run), parked=parked)
        if isinstance(result, BaseException):
            self._fail(run, _public_error(result))
        elif over:
            whole = result is _END and not run.stream.ended
            run.stream.end()
            self._drop(run, streamed=whole and run.patience is not None)
        self._wake()

    def _deadline(self, run: _Run) -> float:
        if run.patience is None:
            return run.ticket.deadline
        begin = self._clock.monotonic() if self._last_call is None else self._last_call
        return begin + run.patience

    def _taken(self, run: _Run) -> None:
        if self._policy.resume(run.ticket, self._deadline(run)):
            self._wake()

    def _left(self, run: _Run) -> None:
        self._policy.cancel(run.ticket)
        self._drop(run)
        self._wake()

    def _fail(self, run: _Run, failure: Exception) -> None:
        run.stream.end(failure)
        self._drop(run)

    def _drop(self, run: _Run, *, streamed: bool = False) -> None:
        """Drop the request and close its generator, after the running step if there is one."""
        if self._runs.pop(run.ticket.number, None) is not None:
            self._meter.batch(BatchStats(run.ticket.rows, run.queued, run.total, streamed))
        if not run.running:
            self._thread.submit(run.steps.close, _closed)


def _public_error(error: BaseException) -> Exception:
    """Return the error that the client of a failed step gets; the log has the details."""
    failure = error
    if not isinstance(error, Exception):
        failure = MlctlError(ErrorCode.INTERNAL, "the request could not be run")
        failure.__cause__ = error
    assert isinstance(failure, Exception)
    log_failure(failure)
    return failure


def log_failure(error: Exception) -> None:
    """Log a failure whose details the client does not get."""
    if not isinstance(error, MlctlError) or error.code is ErrorCode.INTERNAL:
        logger.error("a request failed in the model", exc_info=error)


def _closed(result: object) -> None:
    if isinstance(result, BaseException):
        logger.error("a transform failed while it was closed", exc_info=result)
