"""Run a model's batches on one thread, or on the event loop, and answer their requests.

The asyncio shell around the pure scheduler. Each submitted request is completed exactly once, with
its answer or its error, unless it is cancelled. All state is touched only on the event loop's
thread; only the model's run may be elsewhere. Streams of generators go to `LongRequests`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Protocol

import numpy as np

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from services.online.batching.admission import QueueFullError
from services.online.batching.joining import Outcome, cut, run_joined
from services.online.batching.long_requests import LongMeter, LongRequests, Stepwise, log_failure
from services.online.batching.model_thread import ModelThread
from services.online.batching.scheduler import (
    BatchScheduler,
    Limits,
    Priority,
    Ticket,
    deadline_exceeded,
)
from services.online.batching.split import (
    Cancellable,
    SplitRequest,
    Waiter,
    enqueue_parts,
    split_evenly,
)
from services.online.metrics.counts import BatchStats
from services.runtime.batch_costs import BatchCosts
from services.runtime.padding import Arrays, LengthPadding, shape_key
from services.runtime.streaming import Answer, AnswerStream

__all__ = ["Answer", "Arrays", "BatchExecutor", "BatchRunner", "Cancellable", "Waiter"]
_MAX_FORMS = 256


class BatchRunner(Protocol):
    """What a batch runs: `Scorer`, or a stand-in."""

    def check(self, inputs: Mapping[str, np.ndarray]) -> int: ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays: ...


class BatchMeter(LongMeter, Protocol):
    """Record batches, streams and the queue."""

    def queue_rows(self, rows: int) -> None: ...


class _Job:
    """A queued or running request."""

    __slots__ = ("_executor", "inputs", "ticket", "waiter")

    def __init__(
        self, executor: BatchExecutor, ticket: Ticket, inputs: Arrays, waiter: Waiter
    ) -> None:
        self._executor = executor
        self.ticket = ticket
        self.inputs = inputs
        self.waiter = waiter

    def cancel(self) -> None:
        """Withdraw the request, if it is open."""
        self._executor.withdraw(self.ticket)


def forward(future: asyncio.Future[Answer], waiter: Waiter) -> Cancellable:
    """Complete `waiter` as `future` is completed; return the future, to cancel the request."""

    def pass_on(done: asyncio.Future[Answer]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if waiter.done():
            return
        if error is None:
            waiter.set_result(done.result())
        else:
            waiter.set_exception(error)

    future.add_done_callback(pass_on)
    return future


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
        self._forms: dict[Hashable, tuple[int, Hashable, bool]] = {}
        self._jobs: dict[int, _Job] = {}
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._now = 0.0
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

        Cancel the future to withdraw the request. Raises what `enqueue` raises.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        request = self.enqueue(inputs, future, timeout, priority)

        def withdraw(done: asyncio.Future[Answer]) -> None:
            if done.cancelled():
                request.cancel()

        future.add_done_callback(withdraw)
        return future

    def enqueue(
        self,
        inputs: Arrays,
        waiter: Waiter,
        timeout: float,
        priority: Priority = Priority.NORMAL,
    ) -> Cancellable:
        """Queue `inputs`; `waiter` is answered, or fails with DEADLINE_EXCEEDED, in `timeout` s.

        Independent rows that exceed a batch are split into parts, which wait and run like requests.
        Raises at once what is known at once: INVALID_INPUT, QUEUE_FULL, PAYLOAD_TOO_LARGE.
        """
        form: Hashable
        if len(inputs) == 1:
            ((name, array),) = inputs.items()
            form = name, array.dtype, array.shape
        else:
            form = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        rows, key, is_long = self._forms.get(form) or self._check(form, inputs)
        if is_long:
            stream = self._open(inputs, rows, timeout, priority, whole=True)
            answer = self._loop.create_task(anext(stream))
            # Here and not in the task, which may be cancelled before it begins.
            answer.add_done_callback(lambda _: stream.close())
            return forward(answer, waiter)
        limits = self._policy.limits
        if rows > limits.max_rows and limits.joinable:
            return self._enqueue_split(inputs, rows, key, waiter, timeout, priority)
        return self._enqueue(inputs, rows, key, waiter, timeout, priority)

    def _enqueue_split(
        self,
        inputs: Arrays,
        rows: int,
        key: Hashable,
        waiter: Waiter,
        timeout: float,
        priority: Priority,
    ) -> Cancellable:
        self._schedule()
        self._policy.check_room(rows, priority, self._now)
        parts = list(split_evenly(inputs, rows, self._policy.limits.max_rows))
        request = SplitRequest(waiter, len(parts))
        return enqueue_parts(
            request,
            parts,
            lambda count, part, each: self._enqueue(
                part, count, key, each, timeout, priority, part=True
            ),
        )

    def _enqueue(
        self,
        inputs: Arrays,
        rows: int,
        key: Hashable,
        waiter: Waiter,
        timeout: float,
        priority: Priority,
        *,
        part: bool = False,
    ) -> _Job:
        if not self._pumping:
            self._schedule()
        now = self._now
        if (
            not part
            and self._policy.rejection is not None
            and (full := self._policy.quick_reject(rows, priority, now))
        ):
            raise full
        ticket = self._policy.offer(rows, key, now, now + timeout, priority, part=part)
        job = _Job(self, ticket, inputs, waiter)
        if not self._jobs:  # else the events are cleared already
            self._answered.clear()
            self._empty.clear()
        self._jobs[ticket.number] = job
        return job

    @property
    def rejecting(self) -> bool:
        """Whether a request was rejected since the queue last shrank."""
        return self._policy.rejection is not None

    def quick_reject(self, priority: Priority) -> QueueFullError | None:
        """Return the error that any request of up to LARGE_ROWS rows gets now, else None."""
        if self._stepwise is not None and self._stepwise.is_long(1):
            return None
        return self._policy.quick_reject(None, priority, self._clock.monotonic())

    def _check(self, form: Hashable, inputs: Arrays) -> tuple[int, Hashable, bool]:
        """Check inputs, and cache the result: it depends on names, datatypes and shapes alone."""
        rows = self._model.check(inputs)
        is_long = self._stepwise is not None and self._stepwise.is_long(rows)
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        found = self._forms[form] = rows, self._key(inputs), is_long
        return found

    def withdraw(self, ticket: Ticket) -> None:
        """Drop a request whose client disconnected, if it is open."""
        if self._jobs.pop(ticket.number, None) is not None:
            self._policy.cancel(ticket)
            self._note_empty()

    def stream(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> AnswerStream:
        """Queue `inputs` for a streamed answer; each piece has `timeout` s to come.

        A model that does not run in steps has one piece. Raises at once what `submit` raises.
        """
        rows = self._model.check(inputs)
        if self._stepwise is not None and self._stepwise.is_long(rows):
            return self._open(inputs, rows, timeout, priority, whole=False)
        future = self.submit(inputs, timeout, priority)

        def withdraw() -> None:
            future.cancel()

        stream = AnswerStream(lambda: None, withdraw)

        def complete(done: asyncio.Future[Answer]) -> None:
            if done.cancelled():
                return
            try:
                stream.put(done.result())
            except Exception as error:  # noqa: BLE001 - the reader gets it
                stream.end(error)
            else:
                stream.end()

        future.add_done_callback(complete)
        return stream

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
            self._fail(job.ticket, MlctlError(ErrorCode.UNAVAILABLE, "the server is stopping"))
        if self._long is not None:
            self._long.close()
        self._thread.stop()

    def _schedule(self) -> None:
        # Once per tick of the loop, so that requests which arrive together run together; all of
        # them arrive at the same time, as far as their deadlines and times are concerned.
        if not self._pumping:
            self._pumping = True
            self._now = self._clock.monotonic()
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
            jobs = self._jobs
            self._start([jobs[ticket.number] for ticket in batch], now)
        if not self._pumping:  # else the next tick arms it
            self._arm(now)

    def _expire(self, now: float) -> None:
        for ticket in self._policy.expire(now):
            if self._long is not None and ticket.long:
                self._long.expire(ticket)
            else:
                self._fail(ticket, deadline_exceeded())
        self._note_empty()

    def _long_changed(self) -> None:
        self._note_empty()
        self._schedule()

    def _start(self, jobs: list[_Job], now: float) -> None:
        rows = [job.ticket.rows for job in jobs]
        inputs = [job.inputs for job in jobs]
        gone = [job.waiter.done for job in jobs]
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
        self._now = self._clock.monotonic()  # requests of this tick arrive after the batch's end
        seconds = self._now - started
        rows = sum([job.ticket.rows for job in jobs])
        answer = partial(self._answer, jobs, outcomes, started, seconds, rows)
        # If the next batch is full already, start it before the answers are written; else write
        # them first, because their clients may be the next batch.
        if self._policy.full and not self._inline:
            self._free(outcomes, seconds)
            self._pump()
            answer()
            self._note_empty()
        else:
            try:
                answer()
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

    def _answer(
        self, jobs: list[_Job], outcomes: list[Outcome], started: float, seconds: float, rows: int
    ) -> None:
        """Complete every request of a batch that ran and that is still open."""
        pop = self._jobs.pop
        for job, outcome in zip(jobs, outcomes, strict=True):
            ticket = job.ticket
            if isinstance(outcome, Exception):
                log_failure(outcome)
                self._fail(ticket, outcome)
            elif pop(ticket.number, None) is not None and not job.waiter.done():
                wait = started - ticket.arrived
                job.waiter.set_result(Answer(cut(outcome), wait, seconds, rows))

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        """Complete an open request with `error`."""
        job = self._jobs.pop(ticket.number, None)
        if job is not None and not job.waiter.done():
            job.waiter.set_exception(error)

    def _note_empty(self) -> None:
        if not self._jobs and not self._long:
            self._answered.set()
            if not self._policy.busy:
                self._empty.set()

    def _arm(self, now: float) -> None:
        """Keep one timer, at the policy's next event; a timer that fires early does no harm."""
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
