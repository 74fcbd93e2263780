"""The asyncio shell around the batching policy: futures in, one thread that runs the model.

Every submitted request's future is completed exactly once, with its own answer or its
own error; cancelling the future is how a caller leaves. All state is touched only on
the event loop's thread; only the model's run is elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from services.batcher import Batcher, Limits, Priority, Ticket, deadline_exceeded
from services.costs import BatchCosts
from services.joining import Outcome, run_joined
from services.metrics import BatchStats
from services.model_thread import ModelThread
from services.padding import Arrays, LengthPadding, shape_key

__all__ = ["Answer", "Arrays", "Batching", "Model"]

logger = logging.getLogger("mlctl.batching")


class Model(Protocol):
    """What a batch runs: `Scorer`, or a stand-in."""

    def check(self, inputs: Mapping[str, np.ndarray]) -> int: ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays: ...


class BatchMeter(Protocol):
    """Who is told about batches."""

    def batch(self, stats: BatchStats) -> None: ...

    def queue_rows(self, rows: int) -> None: ...


class Answer(NamedTuple):
    """A request's outputs, how long it waited, and the batch that it ran in."""

    outputs: Arrays
    queue_seconds: float
    infer_seconds: float
    batch_rows: int


class _Job(NamedTuple):
    ticket: Ticket
    inputs: Arrays
    future: asyncio.Future[Answer]


class Batching:
    """The one way to a model's thread. Belongs to the event loop that it was made on.

    With `inline` a batch of at most `limits.max_rows` rows runs on the event loop's own
    thread: right only for a model whose batches take less than a millisecond.
    """

    def __init__(
        self,
        model: Model,
        limits: Limits,
        clock: Clock,
        meter: BatchMeter,
        *,
        inline: bool = False,
        costs: BatchCosts | None = None,
        lengths: LengthPadding | None = None,
    ) -> None:
        self._model = model
        self._policy = Batcher(limits, costs)
        self._clock = clock
        self._meter = meter
        self._inline = inline
        self._lengths = lengths
        self._key = shape_key if lengths is None else lengths.key
        self._loop = asyncio.get_running_loop()
        self._thread = ModelThread[list[Outcome]](self._loop)
        self._jobs: dict[int, _Job] = {}
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._answered = asyncio.Event()
        self._answered.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def running_seconds(self) -> float:
        """For how long the batch that runs now has been running; 0 if none does."""
        return self._policy.running_seconds(self._clock.monotonic())

    @property
    def running_rows(self) -> int:
        """The rows of the batch that runs now, or of the last one."""
        return self._policy.running_rows

    def submit(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> asyncio.Future[Answer]:
        """Queue `inputs`; the future is answered, or fails with DEADLINE_EXCEEDED, in `timeout` s.

        Raises at once what is known at once: INVALID_INPUT, QUEUE_FULL, PAYLOAD_TOO_LARGE.
        """
        rows = self._model.check(inputs)
        now = self._clock.monotonic()
        ticket = self._policy.offer(rows, self._key(inputs), now, now + timeout, priority)
        future: asyncio.Future[Answer] = self._loop.create_future()
        future.add_done_callback(partial(self._on_done, ticket))
        self._jobs[ticket.number] = _Job(ticket, inputs, future)
        self._answered.clear()
        self._empty.clear()
        self._schedule()
        return future

    async def drain(self, grace: float | None = None) -> bool:
        """Wait until every submitted request has its answer and nothing runs; whether it is so.

        A batch that still runs when all callers have had theirs is given `grace` seconds,
        or as long as it takes.
        """
        await self._answered.wait()
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Open requests fail with UNAVAILABLE; the thread ends after the batch that runs."""
        if self._timer is not None:
            self._timer.cancel()
        for job in list(self._jobs.values()):
            self._policy.cancel(job.ticket)
            _fail(job, MlctlError(ErrorCode.UNAVAILABLE, "the server is stopping"))
        self._thread.stop()

    def _schedule(self) -> None:
        # Once per turn of the loop, so that requests which arrive together run together.
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        now = self._clock.monotonic()
        for ticket in self._policy.expire(now):
            _fail(self._jobs[ticket.number], deadline_exceeded())
        batch = self._policy.release(now)
        self._meter.queue_rows(self._policy.waiting_rows)
        if batch:
            self._start([self._jobs[ticket.number] for ticket in batch], now)
        self._arm(now)

    def _start(self, jobs: list[_Job], now: float) -> None:
        rows = [job.ticket.rows for job in jobs]
        inputs = [job.inputs for job in jobs]
        work = partial(run_joined, self._model.run, inputs, rows, self._lengths)
        if self._inline and sum(rows) <= self._policy.limits.max_rows:
            self._finish(jobs, now, work())
            return
        self._thread.submit(work, partial(self._collect, jobs, now))

    def _collect(
        self, jobs: list[_Job], started: float, result: list[Outcome] | BaseException
    ) -> None:
        """Free the slot whatever became of the thread's work, else nothing would run again."""
        if not isinstance(result, BaseException):
            self._finish(jobs, started, result)
            return
        failure = MlctlError(ErrorCode.INTERNAL, "the batch could not be run")
        failure.__cause__ = result
        self._finish(jobs, started, [failure] * len(jobs))

    def _finish(self, jobs: list[_Job], started: float, outcomes: list[Outcome]) -> None:
        seconds = self._clock.monotonic() - started
        clean = not any(isinstance(outcome, Exception) for outcome in outcomes)
        self._policy.finished(seconds, clean=clean)
        rows = sum(job.ticket.rows for job in jobs)
        waits = [started - job.ticket.arrived for job in jobs]
        for job, wait, outcome in zip(jobs, waits, outcomes, strict=True):
            if isinstance(outcome, Exception):
                _log(outcome)
                _fail(job, outcome)
            elif not job.future.done():
                job.future.set_result(Answer(outcome, wait, seconds, rows))
        self._meter.batch(BatchStats(rows, max(waits), seconds))
        self._note_empty()
        self._schedule()

    def _on_done(self, ticket: Ticket, future: asyncio.Future[Answer]) -> None:
        self._jobs.pop(ticket.number, None)
        if future.cancelled():
            self._policy.cancel(ticket)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._jobs:
            self._answered.set()
            if not self._policy.busy:
                self._empty.set()

    def _arm(self, now: float) -> None:
        """Keep one timer, at the policy's next event; one that fires early only looks again."""
        moment = self._policy.next_event(now)
        if moment is None:
            return
        if self._timer is not None and self._timer_at <= moment:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(0.0, moment - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()


def _fail(job: _Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)


def _log(error: Exception) -> None:
    if not isinstance(error, MlctlError) or error.code is ErrorCode.INTERNAL:
        logger.error("a request failed in the model", exc_info=error)
