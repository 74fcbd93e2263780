"""The asyncio shell around the batching policy: futures in, one thread that runs the model.

Every submitted request's future is completed exactly once, with its own answer or its
own error; cancelling the future is how a caller leaves. All state is touched only on
the event loop's thread; only the model's run is elsewhere. What takes more than one
batch's time goes to `LongRequests`. Callers that a desk speaks for have no futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from services.online.batching.admission import QueueFullError
from services.online.batching.desks import Caller, Desk, Told
from services.online.batching.joining import Inputs, Outcome, cut, run_joined
from services.online.batching.long_requests import LongMeter, LongRequests, Stepwise, log_failure
from services.online.batching.model_thread import ModelThread
from services.online.batching.scheduler import (
    BatchScheduler,
    Limits,
    Priority,
    Ticket,
    deadline_exceeded,
)
from services.online.metrics.counts import BatchStats
from services.runtime.batch_costs import BatchCosts
from services.runtime.padding import Arrays, LengthPadding, shape_key
from services.runtime.streaming import Answer, AnswerStream

__all__ = ["Answer", "Arrays", "BatchExecutor", "BatchRunner"]


class BatchRunner(Protocol):
    """What a batch runs: `Scorer`, or a stand-in."""

    def check(self, inputs: Mapping[str, np.ndarray]) -> int: ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays: ...


class BatchMeter(LongMeter, Protocol):
    """Who is told about batches, streams and the queue."""

    def queue_rows(self, rows: int) -> None: ...


class _Job(NamedTuple):
    """A request. Who waits is a future, or a caller of the desk if there is one."""

    ticket: Ticket
    inputs: Inputs
    waiting: Any
    desk: Desk | None = None


class BatchExecutor:
    """The one way to a model's thread. Belongs to the event loop that it was made on.

    With `inline` a batch of at most `limits.max_rows` rows runs on the event loop's own
    thread: right only for a model whose batches take less than a millisecond. A model that
    is `stepwise` does in steps what it says is long; without, every request is one run.
    """

    def __init__(
        self,
        model: BatchRunner,
        limits: Limits,
        clock: Clock,
        meter: BatchMeter,
        *,
        inline: bool = False,
        costs: BatchCosts | None = None,
        lengths: LengthPadding | None = None,
        stepwise: Stepwise | None = None,
    ) -> None:
        self._model = model
        self._policy = BatchScheduler(limits, costs)
        self._clock = clock
        self._meter = meter
        self._inline = inline
        self._lengths = lengths
        self._key = shape_key if lengths is None else lengths.key
        self._loop = asyncio.get_running_loop()
        self._thread = ModelThread(self._loop)
        self._stepwise = stepwise
        self._long: LongRequests | None = None
        if stepwise is not None:
            self._long = LongRequests(
                stepwise, self._policy, self._thread, clock, self._long_changed, meter
            )
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
    def limits(self) -> Limits:
        """What the queue and its batches are held to."""
        return self._policy.limits

    @property
    def waiting_rows(self) -> int:
        """Rows that wait."""
        return self._policy.waiting_rows

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
        if self._stepwise is not None and self._stepwise.is_long(rows):
            stream = self._open(inputs, rows, timeout, priority, whole=True)
            answer = self._loop.create_task(anext(stream))
            # Here and not in the task, which may be cancelled before it begins.
            answer.add_done_callback(lambda _: stream.close())
            return answer
        now = self._clock.monotonic()
        ticket = self._policy.offer(rows, self._key(inputs), now, now + timeout, priority)
        future: asyncio.Future[Answer] = self._loop.create_future()
        future.add_done_callback(partial(self._on_done, ticket))
        if not self._jobs:  # else it is known that there is work
            self._answered.clear()
            self._empty.clear()
        self._jobs[ticket.number] = _Job(ticket, inputs, future)
        self._schedule()
        return future

    def join_key(self, inputs: Arrays) -> Hashable | None:
        """What the inputs' rows are joined by, if their bytes may be joined; else None."""
        if self._lengths is not None or not self._policy.limits.joinable:
            return None
        rows = self._model.check(inputs)
        long = self._stepwise is not None and self._stepwise.is_long(rows)
        return None if long else self._key(inputs)

    def submit_all(self, callers: Sequence[Caller], desk: Desk) -> None:
        """Queue what `callers` ask, for whom `desk` answers, and look at once what is to run.

        Each is told by its `set_exception` what `submit` would raise; those that are alike
        are told the same.
        """
        now = self._clock.monotonic()
        jobs, offer = self._jobs, self._policy.offer
        accepted, refused = False, False
        for caller in callers:
            if refused and (full := self._policy.refusal(caller.rows, caller.priority, now)):
                caller.set_exception(full)
                continue
            try:
                ticket = offer(caller.rows, caller.key, now, now + caller.timeout, caller.priority)
            except MlctlError as error:
                refused = True
                caller.set_exception(error)
                continue
            number = caller.number = ticket.number
            jobs[number] = _Job(ticket, caller, caller, desk)
            accepted = True
        if accepted:
            self._answered.clear()
            self._empty.clear()
            self._pump()

    def refusal(self, rows: int, priority: Priority) -> QueueFullError | None:
        """What a request that is alike would be told now, and counted as offered; None if unknown.

        Others were refused just before: to look at it would but cost the model's time.
        """
        return self._policy.refusal(rows, priority, self._clock.monotonic())

    def withdraw(self, caller: Caller) -> None:
        """Forget what a caller of a desk has asked, if it is open."""
        job = self._jobs.pop(caller.number, None)
        if job is not None:
            self._policy.cancel(job.ticket)
            self._note_empty()

    def stream(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> AnswerStream:
        """Queue `inputs`, whose answer comes in pieces; each has `timeout` s to come.

        Raises at once what `submit` does. Only for a model that is stepwise.
        """
        return self._open(inputs, self._model.check(inputs), timeout, priority, whole=False)

    def _open(
        self, inputs: Arrays, rows: int, timeout: float, priority: Priority, *, whole: bool
    ) -> AnswerStream:
        assert self._long is not None
        stream = self._long.open(inputs, rows, timeout, priority, whole=whole)
        self._answered.clear()
        self._empty.clear()
        return stream

    async def drain(self, grace: float | None = None) -> bool:
        """Wait until every submitted request has its answer and nothing runs; whether it is so.

        A batch that still runs when all callers have had theirs is given `grace` seconds,
        or as long as it takes.
        """
        if self._long is not None:
            self._long.last_call()
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
            self._fail(job, MlctlError(ErrorCode.UNAVAILABLE, "the server is stopping"))
        if self._long is not None:
            self._long.close()
        self._thread.stop()

    def _schedule(self) -> None:
        # Once per turn of the loop, so that requests which arrive together run together.
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        now = self._clock.monotonic()
        self._expire(now)
        batch = self._policy.release(now)
        self._meter.queue_rows(self._policy.waiting_rows)
        if batch and self._long is not None and batch[0].long:
            self._long.step(batch[0], now)
        elif batch:
            self._start([self._jobs[ticket.number] for ticket in batch], now)
        self._arm(now)

    def _expire(self, now: float) -> None:
        for ticket in self._policy.expire(now):
            if self._long is not None and ticket.long:
                self._long.expire(ticket)
            else:
                self._fail(self._jobs[ticket.number], deadline_exceeded())
        self._note_empty()

    def _long_changed(self) -> None:
        self._note_empty()
        self._schedule()

    def _start(self, jobs: list[_Job], now: float) -> None:
        rows = [job.ticket.rows for job in jobs]
        inputs = [job.inputs for job in jobs]
        gone = [job.waiting.done for job in jobs]
        work = partial(run_joined, self._model.run, inputs, rows, self._lengths, gone)
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
        rows = sum([job.ticket.rows for job in jobs])
        tell = partial(self._tell, jobs, outcomes, started, seconds, rows)
        # If a batch is full already, the model need not wait until all these are told; else
        # all that is learned of the batch is learned when its callers have their answers.
        if self._policy.full and not self._inline:
            self._free(outcomes, seconds)
            self._pump()
            tell()
            self._note_empty()
        else:
            try:
                tell()
            finally:
                self._free(outcomes, seconds)
                self._note_empty()
                if not self._policy.idle:
                    self._schedule()
        longest = started - min([job.ticket.arrived for job in jobs])
        self._meter.batch(BatchStats(rows, longest, seconds))

    def _free(self, outcomes: list[Outcome], seconds: float) -> None:
        clean = not any([isinstance(outcome, Exception) for outcome in outcomes])  # noqa: C419 - faster
        self._policy.finished(seconds, clean=clean)

    def _tell(
        self, jobs: list[_Job], outcomes: list[Outcome], started: float, seconds: float, rows: int
    ) -> None:
        """Every request of a batch that ran learns its outcome, if it still waits."""
        told: dict[Desk, list[Told]] = {}
        for job, outcome in zip(jobs, outcomes, strict=True):
            ticket, _, waiting, desk = job
            wait = started - ticket.arrived
            if isinstance(outcome, Exception):
                log_failure(outcome)
                self._fail(job, outcome)
            elif desk is None:
                if not waiting.done():
                    waiting.set_result(Answer(cut(outcome), wait, seconds, rows))
            elif ticket.number in self._jobs:
                del self._jobs[ticket.number]
                if desk in told:
                    told[desk].append((waiting, outcome, wait))
                else:
                    told[desk] = [(waiting, outcome, wait)]
        for desk, callers in told.items():
            desk.answer(callers, seconds)

    def _fail(self, job: _Job, error: Exception) -> None:
        """Tell a request that still waits; a future's callback takes it from the open ones."""
        if job.desk is None:
            if not job.waiting.done():
                job.waiting.set_exception(error)
        elif self._jobs.pop(job.ticket.number, None) is not None:
            job.waiting.set_exception(error)

    def _on_done(self, ticket: Ticket, future: asyncio.Future[Answer]) -> None:
        self._jobs.pop(ticket.number, None)
        if future.cancelled():
            self._policy.cancel(ticket)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._jobs and not self._long:
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
