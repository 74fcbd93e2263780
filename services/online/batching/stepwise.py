"""Run the requests of a model that answers in pieces, one step at a time, on the model's thread.

A running step is never interrupted. Between two steps a request is dropped if its client
disconnected or its deadline passed; its generator is closed on the model's thread, so that user
code runs on that thread alone.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Limits, deadline_exceeded
from mlctl.services.online.batching.model_executor import (
    BatchMeter,
    ModelExecutor,
    forward,
    log_failure,
    logger,
    stopping,
)
from mlctl.services.online.batching.scheduler import Ticket
from mlctl.services.online.batching.split import Cancellable, Waiter
from mlctl.services.online.batching.step_scheduler import MAX_OPEN, StepScheduler
from mlctl.services.online.batching.streaming import Answer, AnswerStream
from mlctl.services.online.metrics.counts import BatchStats
from mlctl.services.protocol.priority import Priority

Steps = Generator[Arrays | None, None, None]
_END = object()


class StepwiseModel(Protocol):
    """A model that runs in steps: `Scorer`, or a stand-in."""

    def check(self, inputs: Mapping[str, np.ndarray]) -> int: ...

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


class StepwiseExecutor(ModelExecutor):
    """The open requests of one model that runs in steps."""

    def __init__(
        self,
        model: StepwiseModel,
        limits: Limits,
        clock: Clock,
        meter: BatchMeter,
        *,
        max_open: int = MAX_OPEN,
    ) -> None:
        super().__init__(clock, meter)
        self._model = model
        self._policy = StepScheduler(limits, max_open)
        self._runs: dict[Ticket, _Run] = {}
        self._last_call: float | None = None
        self._rows = 0
        self._started: float | None = None

    @property
    def limits(self) -> Limits:
        return self._policy.limits

    @property
    def waiting_rows(self) -> int:
        return self._policy.waiting_rows

    @property
    def running_rows(self) -> int:
        return self._rows

    @property
    def running_seconds(self) -> float:
        started = self._started  # read once: the watchdog calls this on another thread
        return 0.0 if started is None else self._clock.monotonic() - started

    @property
    def has_open(self) -> bool:
        return bool(self._runs)

    @property
    def busy(self) -> bool:
        return self._policy.busy

    def enqueue(
        self,
        inputs: Arrays,
        waiter: Waiter,
        timeout: float,
        priority: Priority = Priority.NORMAL,
    ) -> Cancellable:
        stream = self._open(inputs, timeout, priority, whole=True)
        answer = self._loop.create_task(anext(stream))
        # Here and not in the task, which may be cancelled before it begins.
        answer.add_done_callback(lambda _: stream.close())
        return forward(answer, waiter)

    def stream(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> AnswerStream:
        return self._open(inputs, timeout, priority, whole=False)

    async def drain(self, grace: float | None = None) -> bool:
        """See `ModelExecutor.drain`; each answer ends within the time of one piece."""
        if self._last_call is None:
            self._last_call = self._clock.monotonic()
        return await super().drain(grace)

    def close(self) -> None:
        for run in list(self._runs.values()):
            self._policy.cancel(run.ticket)
            self._fail(run, stopping())
        self._stop()

    def _open(
        self, inputs: Arrays, timeout: float, priority: Priority, *, whole: bool
    ) -> AnswerStream:
        """Queue a request; its pieces come from the stream, one if `whole`.

        `timeout` (seconds) is for the whole answer if it is to come `whole`, else for each
        piece to be made and again to be taken.
        """
        rows = self._model.check(inputs)
        now = self._clock.monotonic()
        ticket = Ticket(rows, None, now, now + timeout, priority)
        self._policy.offer(ticket)
        run = _Run(ticket, self._model.steps(inputs, whole=whole), None if whole else timeout)
        run.stream = AnswerStream(partial(self._taken, run), partial(self._disconnected, run))
        self._runs[ticket] = run
        self._schedule()
        return run.stream

    def _pump(self) -> None:
        self._pumping = False
        now = self._clock.monotonic()
        for ticket in self._policy.expire(now):
            self._fail(self._runs[ticket], deadline_exceeded())
        if (released := self._policy.release()) is not None:
            self._start(self._runs[released], now)
        self._meter.queue_rows(self._policy.waiting_rows)
        self._changed.set()
        self._arm(self._policy.next_event(), now)

    def _start(self, run: _Run, now: float) -> None:
        if not run.total:
            run.queued = now - run.ticket.arrived
        run.running = True
        self._rows, self._started = run.ticket.rows, now
        self._thread.submit(partial(next, run.steps, _END), partial(self._stepped, run, now))

    def _stepped(self, run: _Run, started: float, result: object) -> None:
        """Free the slot, and queue the next step unless this was the last one."""
        now = self._clock.monotonic()
        self._started = None
        run.running = False
        run.seconds += now - started
        run.total += now - started
        over = run.stream.ended or result is _END or isinstance(result, BaseException)
        if isinstance(result, dict) and not run.stream.ended:
            rows = run.ticket.rows
            answer = Answer(result, run.queued, run.seconds, rows, rows=rows)
            if run.patience is not None and not run.pieces:
                self._meter.first_piece(now - run.ticket.arrived)
            run.pieces += 1
            run.stream.put(answer)
            run.seconds = 0.0
        parked = run.stream.full
        self._policy.stepped(None if over else self._deadline(run), parked=parked)
        if isinstance(result, BaseException):
            self._fail(run, _public_error(result))
        elif over:
            whole = result is _END and not run.stream.ended
            run.stream.end()
            self._drop(run, streamed=whole and run.patience is not None)
        self._schedule()

    def _deadline(self, run: _Run) -> float:
        if run.patience is None:
            return run.ticket.deadline
        begin = self._clock.monotonic() if self._last_call is None else self._last_call
        return begin + run.patience

    def _taken(self, run: _Run) -> None:
        if self._policy.resume(run.ticket, self._deadline(run)):
            self._schedule()

    def _disconnected(self, run: _Run) -> None:
        self._policy.cancel(run.ticket)
        self._drop(run)
        self._schedule()

    def _fail(self, run: _Run, failure: Exception) -> None:
        run.stream.end(failure)
        self._drop(run)

    def _drop(self, run: _Run, *, streamed: bool = False) -> None:
        """Drop the request and close its generator, after the running step if there is one."""
        if self._runs.pop(run.ticket, None) is not None:
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


def _closed(result: object) -> None:
    if isinstance(result, BaseException):
        logger.error("a transform failed while it was closed", exc_info=result)
