"""Run a model's batches on one thread, or on the event loop, and answer their requests.

The asyncio shell around the pure scheduler. All state is touched only on the event loop's thread;
only the model's run may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.model.features import FeatureLookup
from mlctl.services.model.padding import LengthPadding, shape_key
from mlctl.services.model.scorer import join_rows
from mlctl.services.online.batching.admission import QueueFullError
from mlctl.services.online.batching.model_executor import (
    BatchMeter,
    ModelExecutor,
    log_failure,
    one_piece,
    stopping,
)
from mlctl.services.online.batching.scheduler import (
    BatchScheduler,
    Limits,
    Priority,
    Ticket,
    deadline_exceeded,
)
from mlctl.services.online.batching.split import (
    Cancellable,
    SplitRequest,
    Waiter,
    enqueue_parts,
    split_evenly,
)
from mlctl.services.online.batching.streaming import Answer, AnswerStream
from mlctl.services.online.metrics.counts import BatchStats
from mlctl.services.protocol.wire import make_tuple

__all__ = ["Answer", "BatchExecutor", "BatchRunner", "Cancellable", "Waiter"]
Outcome = Arrays | Exception
_MAX_FORMS = 256


class BatchRunner(Protocol):
    """What a batch runs: `Scorer`, or a stand-in."""

    def check(self, inputs: Mapping[str, np.ndarray]) -> int: ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays: ...


class _Job(Ticket):
    """A request of the scheduler with its inputs and its waiter."""

    executor: BatchExecutor
    inputs: Arrays
    waiter: Waiter

    def cancel(self) -> None:
        """Withdraw the request, if it is open."""
        self.executor.withdraw(self)


class BatchExecutor(ModelExecutor):
    """Runs requests of one model in batches.

    With `inline` a batch of at most `limits.max_rows` rows runs on the event loop's own
    thread: right only for a model whose batches take less than a millisecond.
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
        lookups: FeatureLookup | None = None,
    ) -> None:
        """`lookups` are the model's lookups of features, if it has any."""
        super().__init__(clock, meter)
        self._model = model
        self._policy: BatchScheduler[_Job] = BatchScheduler(limits, costs)
        self._inline = inline
        self._lengths = lengths
        self._key = shape_key if lengths is None else lengths.key
        self._forms: dict[Hashable, tuple[int, Hashable]] = {}
        self._lookups = lookups
        self._lookup_seconds = 0.0 if lookups is None else lookups.seconds

    @property
    def running_seconds(self) -> float:
        return self._policy.running_seconds(self._clock.monotonic())

    @property
    def limits(self) -> Limits:
        return self._policy.limits

    @property
    def waiting_rows(self) -> int:
        return self._policy.waiting_rows

    @property
    def running_rows(self) -> int:
        return self._policy.running_rows

    @property
    def has_open(self) -> bool:
        return bool(self._policy.open_tickets())

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
        """See `ModelExecutor.enqueue`.

        Independent rows that exceed a batch are split into parts, which wait and run like requests.
        """
        form: Hashable
        if len(inputs) == 1:
            ((name, array),) = inputs.items()
            form = name, array.dtype, array.shape
        else:
            form = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        rows, key = self._forms.get(form) or self._check(form, inputs)
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
        job = _Job(rows, key, now, now + timeout, priority)
        job.executor, job.inputs, job.waiter = self, inputs, waiter
        self._policy.offer(job, part=part)
        return job

    def quick_reject(self, priority: Priority) -> QueueFullError | None:
        if self._policy.rejection is None:
            return None
        return self._policy.quick_reject(None, priority, self._clock.monotonic())

    def _check(self, form: Hashable, inputs: Arrays) -> tuple[int, Hashable]:
        """Check inputs, and cache the result: it depends on names, datatypes and shapes alone."""
        rows = self._model.check(inputs)
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        found = self._forms[form] = rows, self._key(inputs)
        return found

    def withdraw(self, job: _Job) -> None:
        """Drop a request whose client disconnected, if it is open."""
        if job.open:
            self._policy.cancel(job)
            self._changed.set()

    def stream(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> AnswerStream:
        """See `ModelExecutor.stream`; the whole answer is one piece."""
        return one_piece(self.submit(inputs, timeout, priority))

    def close(self) -> None:
        for job in self._policy.open_tickets():
            self._policy.cancel(job)
            job.waiter.set_exception(stopping())
        self._changed.set()
        self._stop()

    def _pump(self) -> None:
        self._pumping = False
        now = self._clock.monotonic()
        if overdue := self._policy.expire(now):
            for job in overdue:
                job.waiter.set_exception(deadline_exceeded())
            self._changed.set()
        batch = self._policy.release(now)
        self._meter.queue_rows(self._policy.waiting_rows)
        if batch:
            self._start(batch, now)
        if not self._pumping:  # else the next tick arms it
            self._arm(self._policy.next_event(now), now)

    def _start(self, batch: list[_Job], now: float) -> None:
        work = partial(run_joined, self._model.run, batch, self._lengths)
        if self._inline and self._policy.running_rows <= self._policy.limits.max_rows:
            self._finish(batch, now, work())
        else:
            self._thread.submit(work, partial(self._collect, batch, now))

    def _collect(
        self, batch: list[_Job], started: float, result: list[Outcome] | BaseException
    ) -> None:
        """Free the slot whatever became of the thread's work, else nothing would run again."""
        if not isinstance(result, BaseException):
            self._finish(batch, started, result)
            return
        failure = MlctlError(ErrorCode.INTERNAL, "the batch could not be run")
        failure.__cause__ = result
        self._finish(batch, started, [failure] * len(batch))

    def _finish(self, batch: list[_Job], started: float, outcomes: list[Outcome]) -> None:
        self._now = self._clock.monotonic()  # requests of this tick arrive after the batch's end
        seconds = self._now - started
        rows = self._policy.running_rows
        clean = set(map(type, outcomes)) == {dict}
        # If the next batch is full already, start it before the answers are written; else write
        # them first, because their clients may be the next batch.
        if self._policy.full and not self._inline:
            self._policy.finished(seconds, clean=clean)
            self._pump()
            self._answer(batch, outcomes, started, seconds, rows)
        else:
            try:
                self._answer(batch, outcomes, started, seconds, rows)
            finally:
                self._policy.finished(seconds, clean=clean)
                if not self._policy.idle:
                    self._schedule()
        self._changed.set()
        longest = started - min([job.arrived for job in batch])
        self._meter.batch(BatchStats(rows, longest, seconds))

    def _answer(
        self, batch: list[_Job], outcomes: list[Outcome], started: float, seconds: float, rows: int
    ) -> None:
        """Complete every request of a batch that ran and that is still open."""
        looked_up = 0.0
        if self._lookups is not None:
            looked_up = self._lookups.seconds - self._lookup_seconds
            self._lookup_seconds += looked_up
        for job, outcome in zip(batch, outcomes, strict=True):
            is_open, job.open = job.open, False
            if not isinstance(outcome, Exception):
                if is_open:
                    queued = started - job.arrived
                    fields = outcome, queued, seconds, rows, None, looked_up, job.rows
                    job.waiter.set_result(make_tuple(Answer, fields))
                continue
            log_failure(outcome)
            if is_open:
                job.waiter.set_exception(outcome)


class JoinedRequest(Protocol):
    """A request of a batch; `open` until its client disconnected or its deadline passed."""

    rows: int
    inputs: Arrays
    open: bool


def run_joined(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[JoinedRequest],
    lengths: LengthPadding | None = None,
) -> list[Outcome]:
    """Run several requests as one batch, and return the answer or the error of each, in order.

    Pure: the model is the function `run`. A batch that fails, or that cannot be joined, is halved
    until the failing request is alone: it costs the others time, but not their answers, in at most
    twice as many runs as there are requests. A half is skipped if all of its clients have
    disconnected. With `lengths`, sequences of different lengths are padded for the run.
    """
    try:
        if len(requests) == 1:
            return [run(requests[0].inputs)]
        return list(_run_together(run, requests, lengths))
    except Exception as error:  # noqa: BLE001 - it is the outcome of the request
        if len(requests) == 1:
            return [error]
    middle = len(requests) // 2
    outcomes: list[Outcome] = []
    for half in (requests[:middle], requests[middle:]):
        if any([request.open for request in half]):  # noqa: C419 - faster
            outcomes += run_joined(run, half, lengths)
        else:
            outcomes += [deadline_exceeded() for _ in half]
    return outcomes


def _run_together(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[JoinedRequest],
    lengths: LengthPadding | None,
) -> list[Arrays]:
    rows = [request.rows for request in requests]
    inputs = [request.inputs for request in requests]
    if lengths is None:
        return _divide(run(join_rows(inputs)), rows)
    levelled = lengths.pad_to_longest(inputs)
    shares = _divide(run(join_rows(levelled)), rows)
    padded = lengths.length(levelled[0])
    if padded is None:
        return shares
    own = [lengths.length(each) for each in inputs]
    return [
        share if length is None else lengths.trim(share, padded, length)
        for share, length in zip(shares, own, strict=True)
    ]


def _divide(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Return the rows of each request, as views."""
    if len(outputs) == 1 and len(rows) == sum(rows):
        # An array yields its rows in C, several times as fast as slices are made.
        ((name, array),) = outputs.items()
        return [{name: row} for row in array[:, None]]
    ends = list(accumulate(rows))  # plain numbers: numpy's own are slow to add and to slice with
    spans = [slice(end - count, end) for count, end in zip(rows, ends, strict=True)]
    return [{name: array[span] for name, array in outputs.items()} for span in spans]
