"""When requests are sent: a closed loop of clients, or an open one that keeps a rate.

A client of the closed loop asks again when it is answered. In the open loop requests are
due at moments that no answer moves, and a latency counts from then on: a server that
stalls is charged for everybody who had to wait meanwhile. Times are those of `perf_counter`:
an event loop's own may be a millisecond old.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Protocol

from loadtest.figures import UNANSWERED, LatencyRecord

Done = Callable[[str, bytes], None]

# For how long those asked last may be answered; what is open then counts as unanswered.
GRACE_SECONDS = 10.0


class RequestSender(Protocol):
    """Sends one request at a time, and says how it ended: the outcome and the Server-Timing."""

    def send(self, done: Done) -> None: ...

    def close(self) -> None: ...


async def closed_loop(
    senders: Sequence[RequestSender], seconds: float, record: LatencyRecord
) -> float:
    """Ask with all `senders` over and over; the seconds it took until the last answer."""
    loop = asyncio.get_running_loop()
    start = perf_counter()
    end = start + seconds
    left = set(range(len(senders)))
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
            left.discard(index)
            if not left:
                over.set_result(None)

        sender.send(done)

    for index, sender in enumerate(senders):
        run(index, sender)
    await _wait(over, seconds + GRACE_SECONDS)
    for index in left:
        record.errors[UNANSWERED] += 1
        senders[index].close()  # its answer, should it come, is nobody's any more
    return perf_counter() - start


class OpenLoop:
    """Keeps `rate` requests a second for `seconds`, at random moments, the same in every run.

    When all senders are busy, another one is opened, up to `most`; then requests wait for
    the next that is free, and the wait is part of their latency.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[RequestSender]],
        rate: float,
        *,
        most: int = 1024,
    ) -> None:
        self._connect = connect
        self._rate = rate
        self._most = most
        self._chance = random.Random(1)  # noqa: S311 - arrivals, not secrets
        self._idle: list[RequestSender] = []
        self._waiting: deque[float] = deque()
        self._opened = 0
        self._open = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._senders: list[RequestSender] = []
        self._stopped = threading.Event()

    async def run(self, seconds: float, record: LatencyRecord) -> float:
        """Ask; the seconds until the last answer. The senders stay for the next run."""
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
        """The thread that says when requests are due: an event loop wakes a millisecond late."""
        while due < end and not self._stopped.wait(max(0.0, due - perf_counter())):
            now, moments = perf_counter(), list[float]()
            while due <= now and due < end:
                moments.append(due)
                due += self._chance.expovariate(self._rate)
            self._loop.call_soon_threadsafe(self._ask_all, moments)
        if not self._stopped.is_set():
            self._loop.call_soon_threadsafe(self._end)

    def _ask_all(self, moments: Sequence[float]) -> None:
        if not self._over.done():
            for due in moments:
                self._ask(due)

    def _end(self) -> None:
        self._ended = True
        self._check_over()

    def _ask(self, due: float) -> None:
        self._open += 1
        if self._idle:
            self._send(self._idle.pop(), due)
            return
        self._waiting.append(due)
        if self._opened < self._most:
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
            if over is self._over:  # else it answers one that an earlier run gave up
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
    """Wait for `over`, but no longer; it is done afterwards, so that late answers are ignored."""
    await asyncio.wait((over,), timeout=seconds)
    if not over.done():
        over.set_result(None)
