"""What executors of batches and of steps share: the model's thread, ticks, one timer, draining.

An executor belongs to the event loop that it was made on, and touches its state only there. Each
accepted request is completed exactly once, with its answer or its error, unless it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Limits, QueueFullError
from mlctl.services.online.batching.split import Cancellable, Waiter
from mlctl.services.online.batching.streaming import Answer, AnswerStream
from mlctl.services.online.metrics.counts import BatchStats
from mlctl.services.protocol.priority import Priority

_T = TypeVar("_T")
Done = Callable[[_T | BaseException], None]
# The event loop goes first where both want the same core: it needs little time, and responses must
# not wait for the end of the model's time slice.
_NICER = 3
logger = logging.getLogger("mlctl.batching")


class BatchMeter(Protocol):
    """Record batches, streams and the queue."""

    def batch(self, stats: BatchStats) -> None: ...

    def first_piece(self, seconds: float) -> None: ...

    def queue_rows(self, rows: int) -> None: ...


class _FutureWaiter:
    """Completes a future, unless its owner has cancelled it."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def set_result(self, answer: Answer, /) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def set_exception(self, error: BaseException, /) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def forward(future: asyncio.Future[Answer], waiter: Waiter) -> Cancellable:
    """Complete `waiter` as `future` is completed; return the future, to cancel the request."""

    def pass_on(done: asyncio.Future[Answer]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            waiter.set_result(done.result())
        else:
            waiter.set_exception(error)

    future.add_done_callback(pass_on)
    return future


def one_piece(future: asyncio.Future[Answer]) -> AnswerStream:
    """Return a stream whose one piece is the answer of `future`; closing it cancels the future."""

    def cancel() -> None:
        future.cancel()

    stream = AnswerStream(lambda: None, cancel)

    def complete(done: asyncio.Future[Answer]) -> None:
        if done.cancelled():
            stream.end()
        elif (failure := done.exception()) is not None:
            stream.end(failure if isinstance(failure, Exception) else None)
        else:
            stream.put(done.result())
            stream.end()

    future.add_done_callback(complete)
    return stream


def log_failure(error: Exception) -> None:
    """Log a failure whose details the client does not get."""
    if not isinstance(error, MlctlError) or error.code is ErrorCode.INTERNAL:
        logger.error("a request failed in the model", exc_info=error)


def stopping() -> MlctlError:
    """Return the error of a request that is open when the server stops."""
    return MlctlError(ErrorCode.UNAVAILABLE, "the server is stopping")


class ModelThread:
    """Runs one task after the other; results are delivered on the event loop's thread.

    It is a daemon: a run that never ends must not keep the process from ending, as a thread of
    `concurrent.futures` would, which the interpreter joins at its exit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="mlctl-model", daemon=True).start()

    def submit(self, work: Callable[[], _T], done: Done[_T]) -> None:
        """Do `work`, then call `done` on the loop with its result, or with what it raised."""
        self._work.put((work, done))

    def stop(self) -> None:
        """End the thread after the submitted tasks."""
        self._work.put(None)

    def _run(self) -> None:
        _lower_priority()
        while (item := self._work.get()) is not None:
            work, done = item
            result: Any
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                result = error
            # On a closed loop no request waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(done, result)


def _lower_priority() -> None:
    """Lower this thread's priority, on systems with priorities per thread."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a sandbox may forbid it, and all works without
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER)


class ModelExecutor(ABC):
    """The one path to a model's thread."""

    def __init__(self, clock: Clock, meter: BatchMeter) -> None:
        self._clock = clock
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._thread = ModelThread(self._loop)
        self._pumping = False
        self._now = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Set when a request or a batch ends: `drain` waits for it.
        self._changed = asyncio.Event()

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits of the queue and of a batch."""

    @property
    @abstractmethod
    def waiting_rows(self) -> int:
        """The rows that wait."""

    @property
    @abstractmethod
    def running_rows(self) -> int:
        """The rows of the running batch or step, or of the last one."""

    @property
    @abstractmethod
    def running_seconds(self) -> float:
        """For how many seconds the batch or step runs; 0 if none does. For any thread."""

    @property
    @abstractmethod
    def has_open(self) -> bool:
        """Whether an accepted request is not completed."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a batch or step runs."""

    @abstractmethod
    def enqueue(
        self,
        inputs: Arrays,
        waiter: Waiter,
        timeout: float,
        priority: Priority = Priority.NORMAL,
    ) -> Cancellable:
        """Queue `inputs`; `waiter` is answered, or fails with DEADLINE_EXCEEDED, in `timeout` s.

        Raises at once what is known at once: INVALID_INPUT, QUEUE_FULL, PAYLOAD_TOO_LARGE.
        """

    @abstractmethod
    def stream(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> AnswerStream:
        """Queue `inputs` for a streamed answer; each piece has `timeout` s to come.

        Raises what `enqueue` raises.
        """

    @abstractmethod
    def close(self) -> None:
        """Fail open requests with UNAVAILABLE; the thread ends after the running batch or step."""

    @abstractmethod
    def _pump(self) -> None:
        """Expire requests, start what the policy releases, and arm the timer."""

    def quick_reject(self, priority: Priority) -> QueueFullError | None:
        """Return the error that any request of up to LARGE_ROWS rows gets now, else None."""
        del priority
        return None

    def submit(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> asyncio.Future[Answer]:
        """Do what `enqueue` does, to a future; cancel it to withdraw the request."""
        waiter = _FutureWaiter(self._loop.create_future())
        request = self.enqueue(inputs, waiter, timeout, priority)

        def withdraw(done: asyncio.Future[Answer]) -> None:
            if done.cancelled():
                request.cancel()

        waiter.future.add_done_callback(withdraw)
        return waiter.future

    async def drain(self, grace: float | None = None) -> bool:
        """Wait until every accepted request has its answer and nothing runs; whether it is so.

        A batch that still runs when all requests are answered is given `grace` seconds, or as long
        as it takes.
        """
        while self.has_open:
            self._changed.clear()
            await self._changed.wait()
        try:
            async with asyncio.timeout(grace):
                while self.busy:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _schedule(self) -> None:
        # Once per tick of the loop, so that requests which arrive together run together; all of
        # them arrive at the same time, as far as their deadlines and times are concerned.
        if not self._pumping:
            self._pumping = True
            self._now = self._clock.monotonic()
            self._loop.call_soon(self._pump)

    def _arm(self, moment: float | None, now: float) -> None:
        """Keep one timer, at the policy's next event; a timer that fires early does no harm."""
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

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._thread.stop()
