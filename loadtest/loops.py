"""When requests are sent: by a closed loop of clients, or by an open loop at a rate.

A client of the closed loop sends its next request when the last one was answered. In the open loop,
requests are due at times that do not depend on answers, and latency counts from the due time: a
server that stalls is charged for every request that had to wait. Times are from `perf_counter`,
because an event loop's time may be a millisecond old.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Protocol

from mlctl.loadtest.figures import UNANSWERED, LatencyRecord

Done = Callable[[str, bytes], None]

# The time for answers after the last request; requests still open then count as unanswered.
GRACE_SECONDS = 10.0


class RequestSender(Protocol):
    """Sends one request at a time, and reports its outcome and Server-Timing."""

    def send(self, done: Done) -> None: ...

    def close(self) -> None: ...


async def closed_loop(
    senders: Sequence[RequestSender], seconds: float, record: LatencyRecord
) -> float:
    """Send with all `senders` for `seconds`; return the seconds until the last answer."""
    loop = asyncio.get_running_loop()
    start = perf_counter()
    end = start + seconds
    active = set(range(len(senders)))
    over = loop.create_future()

    def run(index: int, sender: RequestSender) -> None:
        sent = perf_counter()

        def done(outcome: str, timing: bytes) -> None:
            nonlocal sent
            now = perf_counter()
            if over.done():
                return
            record.add(now - sent, outcome, timing)
            if now < end:
                sent = now
                sender.send(done)
                return
            active.discard(index)
            if not active:
                over.set_result(None)

        sender.send(done)

    for index, sender in enumerate(senders):
        run(index, sender)
    await _wait(over, seconds + GRACE_SECONDS)
    for index in active:
        record.errors[UNANSWERED] += 1
        senders[index].close()  # a late answer has no receiver
    return perf_counter() - start


class OpenLoop:
    """Sends `rate` requests per second at random times, which are the same in every run.

    When all senders are busy, another one is opened, up to `max_senders`. Then requests wait for
    the next free sender, and the wait is part of their latency.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[RequestSender]],
        rate: float,
        *,
        max_senders: int = 1024,
    ) -> None:
        self._connect = connect
        self._rate = rate
        self._max_senders = max_senders
        self._chance = random.Random(1)  # noqa: S311 - arrivals, not secrets
        self._idle: list[RequestSender] = []
        self._waiting: deque[float] = deque()
        self._opened = 0
        self._open = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._senders: list[RequestSender] = []
        self._stopped = threading.Event()

    async def run(self, seconds: float, record: LatencyRecord) -> float:
        """Send for `seconds` and return the seconds until the last answer; keep the senders."""
        self._record, self._open = record, 0
        self._waiting.clear()
        self._loop = loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._ended = False
        start = perf_counter()
        pacer = threading.Thread(target=self._pace, args=(start, start + seconds), daemon=True)
        pacer.start()
        try:
            await _wait(self._over, seconds + GRACE_SECONDS)
        finally:
            self._stopped.set()
            pacer.join()
            self._stopped.clear()
        if self._open:
            self._record.errors[UNANSWERED] += self._open
        return perf_counter() - start

    def close(self) -> None:
        """Close every sender."""
        for task in self._opening:
            task.cancel()
        for sender in self._senders:
            sender.close()

    def _pace(self, due: float, end: float) -> None:
        """Schedule the requests, in a thread: an event loop wakes up a millisecond late."""
        while due < end and not self._stopped.wait(max(0.0, due - perf_counter())):
            now, due_times = perf_counter(), list[float]()
            while due <= now and due < end:
                due_times.append(due)
                due += self._chance.expovariate(self._rate)
            self._loop.call_soon_threadsafe(self._send_all, due_times)
        if not self._stopped.is_set():
            self._loop.call_soon_threadsafe(self._end)

    def _send_all(self, due_times: Sequence[float]) -> None:
        if not self._over.done():
            for due in due_times:
                self._dispatch(due)

    def _end(self) -> None:
        self._ended = True
        self._check_over()

    def _dispatch(self, due: float) -> None:
        self._open += 1
        if self._idle:
            self._send(self._idle.pop(), due)
            return
        self._waiting.append(due)
        if self._opened < self._max_senders:
            self._opened += 1
            task = self._loop.create_task(self._add_sender())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _add_sender(self) -> None:
        try:
            sender = await self._connect()
        except OSError as error:
            self._opened -= 1
            if self._waiting:
                self._settle(self._waiting.popleft(), type(error).__name__, b"")
            return
        self._senders.append(sender)
        self._next(sender)

    def _send(self, sender: RequestSender, due: float) -> None:
        over = self._over

        def done(outcome: str, timing: bytes) -> None:
            if over is self._over:  # else it answers a request of an earlier run
                self._settle(due, outcome, timing)
            self._next(sender)

        sender.send(done)

    def _settle(self, due: float, outcome: str, timing: bytes) -> None:
        if not self._over.done():
            self._open -= 1
            self._record.add(perf_counter() - due, outcome, timing)
            self._check_over()

    def _next(self, sender: RequestSender) -> None:
        if self._waiting and not self._over.done():
            self._send(sender, self._waiting.popleft())
        else:
            self._idle.append(sender)

    def _check_over(self) -> None:
        if self._ended and not self._open and not self._over.done():
            self._over.set_result(None)


async def _wait(over: asyncio.Future[None], seconds: float) -> None:
    """Wait for `over` for at most `seconds`, then set it, so that late answers are ignored."""
    await asyncio.wait((over,), timeout=seconds)
    if not over.done():
        over.set_result(None)
